// A map of byte slices that a second goroutine gives the keys of. C makes the program dynamic, as most with cgo are:
// a library can be loaded into it.
package main

// #include <stdlib.h>
import "C"

import (
	"fmt"
	"hash/fnv"
)

func main() {
	C.free(C.malloc(1 << 16))
	keys := make(chan uint64, 128)
	go func() {
		x := uint64(0x9e3779b97f4a7c15)
		for i := 0; i < 900000; i++ {
			x ^= x << 13
			x ^= x >> 7
			x ^= x << 17
			keys <- x
		}
		close(keys)
	}()
	values := map[uint64][]byte{}
	order := []uint64{}
	for key := range keys {
		value := make([]byte, 128)
		for i := range value {
			value[i] = byte(key >> (uint(i) % 56))
		}
		values[key] = value
		order = append(order, key)
	}
	hash, wrong := fnv.New64a(), 0
	for _, key := range order {
		value := values[key]
		if value[5] != byte(key>>5) || value[119] != byte(key>>7) {
			wrong++
		}
		hash.Write(value)
	}
	fmt.Println(len(values), wrong, hash.Sum64())
}
