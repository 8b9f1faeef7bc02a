#include "textflag.h"

// Eight keys are hashed at a time; see job.Mix.
#define EIGHT(K) \
	VPSRLQ  $30, Z0, Z1    \
	VPXORQ  Z0, Z1, Z1     \
	VPMULLQ Z8, Z1, Z1     \
	VPSRLQ  $27, Z1, Z2    \
	VPXORQ  Z2, Z1, Z1     \
	VPMULLQ Z9, Z1, Z1     \
	VPSRLQ  $31, Z1, Z2    \
	VPXORQ  Z2, Z1, Z1     \
	VPSUBQ  Z10, Z1, Z1    \
	VPCMPUQ $2, Z11, Z1, K \
	VPADDQ  Z12, Z0, Z0

DATA upToSeven<>+0(SB)/8, $0
DATA upToSeven<>+8(SB)/8, $1
DATA upToSeven<>+16(SB)/8, $2
DATA upToSeven<>+24(SB)/8, $3
DATA upToSeven<>+32(SB)/8, $4
DATA upToSeven<>+40(SB)/8, $5
DATA upToSeven<>+48(SB)/8, $6
DATA upToSeven<>+56(SB)/8, $7
GLOBL upToSeven<>(SB), RODATA|NOPTR, $64

// func hashesIn512(dst *uint32, n int, key, first, last uint64)
TEXT ·hashesIn512(SB), NOSPLIT, $0-40
	MOVQ dst+0(FP), DI
	MOVQ n+8(FP), CX
	VPBROADCASTQ key+16(FP), Z0
	VPADDQ       upToSeven<>(SB), Z0, Z0
	VPBROADCASTQ first+24(FP), Z10
	VPBROADCASTQ last+32(FP), Z11
	MOVQ         $0xbf58476d1ce4e5b9, AX
	VPBROADCASTQ AX, Z8
	MOVQ         $0x94d049bb133111eb, AX
	VPBROADCASTQ AX, Z9
	MOVQ         $8, AX
	VPBROADCASTQ AX, Z12

loop:
	EIGHT(K1)
	EIGHT(K2)
	EIGHT(K3)
	EIGHT(K4)
	KUNPCKBW K1, K2, K1 // the first of two is the upper half
	KUNPCKBW K3, K4, K3
	KUNPCKWD K1, K3, K1
	KMOVD    K1, AX
	MOVL     AX, (DI)
	ADDQ     $4, DI
	DECQ     CX
	JNZ      loop
	VZEROUPPER
	RET
