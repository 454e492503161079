/* A bare program for an rv64 machine: it does one access at a time, as a test asks by a serial line.
 *
 * Its own code runs in machine mode, which translates nothing. Accesses of a test are made by the
 * probe, which runs translated, in user or supervisor mode, and comes back by ecall or a fault. This
 * program must never judge a result: it only tells it.
 *
 * It answers once without a command, when it can take one.
 * A command is a letter and hexadecimal numbers in one line, the answer two numbers in one line:
 *   r ADDRESS                  reads 8 bytes of physical memory
 *   s ADDRESS VALUE            swaps 8 bytes of physical memory, in one atomic step
 *   a SATP                     loads satp
 *   f ADDRESS                  invalidates the translations of an address (sfence.vma)
 *   l MODE PROBE ADDRESS       loads, in mode 0 (user) or 1 (supervisor)
 *   t MODE PROBE ADDRESS VALUE stores
 *   x MODE ADDRESS             jumps there
 *   q                          ends the machine
 * l, t and x answer the cause of the trap that ended the access, and the loaded value or mtval.
 * PROBE is the address at which that mode sees the probe.
 */
#include <stdint.h>

#define UART ((volatile uint8_t *)0x10000000)
#define FINISHER ((volatile uint32_t *)0x100000)
#define MTIME ((volatile uint64_t *)0x200bff8)
#define MTIMECMP ((volatile uint64_t *)0x2004000)
/* The interrupt controller: the line's priority, what hart 0 gets, and what it took. */
#define UART_INTERRUPT 10
#define PRIORITY ((volatile uint32_t *)0xc000000 + UART_INTERRUPT)
#define ENABLED ((volatile uint32_t *)0xc002000)
#define CLAIM ((volatile uint32_t *)0xc200004)
#define TICKS_PER_SECOND 10000000
/* A test that died asks nothing any more. */
#define SECONDS_WITHOUT_A_COMMAND 60

struct trap { uint64_t a0, mtval; };
uint64_t enter(uint64_t pc, uint64_t mode, uint64_t address, uint64_t value, struct trap *trap);

__asm__(
    ".section .text.start\n"
    ".globl start\n"
    "start:\n"
    "    la sp, stack + 8192\n"
    "    la t0, trapped\n"
    "    csrw mtvec, t0\n"
    /* All memory to all modes: without a rule there is none for user and supervisor. */
    "    li t0, -1\n"
    "    csrw pmpaddr0, t0\n"
    "    li t0, 0x1f\n"
    "    csrw pmpcfg0, t0\n"
    "    call serve\n"
    ".text\n"
    ".globl enter\n"
    "enter:\n"
    "    addi sp, sp, -16\n"
    "    sd ra, 0(sp)\n"
    "    sd a4, 8(sp)\n"
    "    csrw mscratch, sp\n"
    "    csrw mepc, a0\n"
    "    csrr t0, mstatus\n"
    "    li t1, 3 << 11\n"
    "    not t1, t1\n"
    "    and t0, t0, t1\n"
    "    slli a1, a1, 11\n"
    "    or t0, t0, a1\n"
    "    csrw mstatus, t0\n"
    "    mv a1, a2\n"
    "    mv a0, a3\n"
    "    mret\n"
    /* The end of an access: returns from `enter`. The probe changes a0 alone. */
    ".balign 4\n"
    "trapped:\n"
    "    csrr t0, mstatus\n"
    "    li t1, 3 << 11\n"
    "    and t0, t0, t1\n"
    "    beq t0, t1, broken\n"
    "    csrr sp, mscratch\n"
    "    ld t0, 8(sp)\n"
    "    sd a0, 0(t0)\n"
    "    csrr t1, mtval\n"
    "    sd t1, 8(t0)\n"
    "    csrr a0, mcause\n"
    "    ld ra, 0(sp)\n"
    "    addi sp, sp, 16\n"
    "    ret\n"
    /* A trap of this program itself. */
    "broken:\n"
    "    li a0, 2\n"
    "    call finish\n"
    ".section .probe, \"ax\"\n"
    "    ld a0, 0(a1)\n"
    "    ecall\n"
    ".balign 8\n"
    "    sd a0, 0(a1)\n"
    "    ecall\n"
    ".text\n");

enum { LOAD = 0, STORE = 8 }; /* Offsets in the probe. */

char stack[8192] __attribute__((aligned(16)));

void finish(uint32_t code) {
    *FINISHER = code ? code << 16 | 0x3333 : 0x5555;
    for (;;) {}
}

/* Sleeps until a character comes, or until then. A loop without this keeps QEMU from reading. */
static void wait(uint64_t until) {
    *MTIMECMP = until;
    /* Interrupts are off here, and on in the other modes, so that they must not be left enabled. */
    __asm__ volatile("csrs mie, %0\n wfi\n csrc mie, %0" ::"r"(1 << 11 | 1 << 7) : "memory");
    uint32_t taken = *CLAIM;
    if (taken)
        *CLAIM = taken;
}

static char get(void) {
    if (!(UART[5] & 1)) {
        uint64_t limit = *MTIME + (uint64_t)SECONDS_WITHOUT_A_COMMAND * TICKS_PER_SECOND;
        while (!(UART[5] & 1)) {
            if (*MTIME >= limit)
                finish(3);
            wait(limit);
        }
    }
    return UART[0];
}

static void put(char c) {
    while (!(UART[5] & 0x20)) {}
    UART[0] = c;
}

static void tell(uint64_t number, char end) {
    int shift = 60;
    while (shift && !(number >> shift))
        shift -= 4;
    for (; shift >= 0; shift -= 4)
        put("0123456789abcdef"[number >> shift & 15]);
    put(end);
}

/* Reads a command: its letter, and its numbers into `numbers`. */
static char command(uint64_t numbers[4]) {
    char letter = get(), c;
    int count = 0;
    while ((c = get()) != '\n') {
        if (c == ' ') {
            if (count == 4)
                finish(4);
            numbers[count++] = 0;
        } else if (count) {
            numbers[count - 1] = numbers[count - 1] << 4 | (uint64_t)(c <= '9' ? c - '0' : c - 'a' + 10);
        } else {
            finish(5);
        }
    }
    return letter;
}

void serve(void) {
    UART[2] = 1; /* The queues of the line: a command comes in one piece. This empties them, too. */
    UART[1] = 1; /* An interrupt when something comes. */
    *PRIORITY = 1;
    *ENABLED = 1 << UART_INTERRUPT;
    tell(0, ' ');
    tell(0, '\n');
    for (;;) {
        uint64_t n[4] = {0}, cause = 0;
        struct trap trap = {0};
        switch (command(n)) {
        case 'r': trap.a0 = *(volatile uint64_t *)n[0]; break;
        case 's': trap.a0 = __atomic_exchange_n((uint64_t *)n[0], n[1], __ATOMIC_SEQ_CST); break;
        case 'a': __asm__ volatile("csrw satp, %0\n sfence.vma" ::"r"(n[0]) : "memory"); break;
        case 'f': __asm__ volatile("sfence.vma %0, zero" ::"r"(n[0]) : "memory"); break;
        case 'l': cause = enter(n[1] + LOAD, n[0], n[2], 0, &trap); break;
        case 't': cause = enter(n[1] + STORE, n[0], n[2], n[3], &trap); break;
        case 'x': cause = enter(n[1], n[0], 0, 0, &trap); break;
        case 'q': finish(0); break;
        default: finish(6);
        }
        tell(cause, ' ');
        tell(cause >= 12 ? trap.mtval : trap.a0, '\n');
    }
}
