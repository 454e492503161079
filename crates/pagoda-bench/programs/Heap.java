// Sorts numbers in parallel, fills a map of boxed keys, sorts strings; prints what each comes to.
import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import java.util.SplittableRandom;

public class Heap {
    public static void main(String[] arguments) {
        SplittableRandom random = new SplittableRandom(7);
        long[] numbers = new long[8_000_000];
        for (int i = 0; i < numbers.length; i++) numbers[i] = random.nextLong();
        Arrays.parallelSort(numbers);
        long sum = 0;
        for (long number : numbers) sum = sum * 31 + number;
        System.out.println("numbers " + sum);

        Map<Long, String> map = new HashMap<>();
        for (int i = 0; i < 500_000; i++) map.put(numbers[i * 16] % 1_000_000_007L, "value " + i);
        sum = 0;
        for (Map.Entry<Long, String> entry : map.entrySet()) sum += entry.getKey() * 7 + entry.getValue().hashCode();
        System.out.println("map " + map.size() + " " + sum);

        String[] strings = new String[300_000];
        for (int i = 0; i < strings.length; i++) strings[i] = Long.toHexString(random.nextLong());
        Arrays.sort(strings);
        sum = 0;
        for (String string : strings) sum = sum * 31 + string.hashCode();
        System.out.println("strings " + sum);
    }
}
