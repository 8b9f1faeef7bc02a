#include "textflag.h"

// The fields of Constants.
#define SCALE  0
#define CLIP   4
#define LOW    8
#define L2     12
#define RATE   16
#define EPSILON 20
#define TAKE1  24
#define TAKE2  28
#define UNBIAS 32

// What every update begins with: DX is the constants. Y15 collects the lanes
// that are not finite.
#define PROLOGUE \
	VBROADCASTSS SCALE(DX), Y14 \
	VBROADCASTSS CLIP(DX), Y13  \
	VBROADCASTSS LOW(DX), Y12   \
	VBROADCASTSS L2(DX), Y11    \
	VBROADCASTSS RATE(DX), Y10  \
	VXORPS Y15, Y15, Y15

// Y1 becomes the gradient of the weights in Y0. The minimum and the maximum
// return their second operand where one is NaN, as the comparisons of Go leave
// it.
#define GRADIENT \
	VMULPS (BX), Y14, Y1  \
	VMINPS Y1, Y13, Y1    \
	VMAXPS Y1, Y12, Y1    \
	VMULPS Y0, Y11, Y2    \
	VADDPS Y2, Y1, Y1

// func sgdAVX2(w, grad *float32, n int, c *Constants) (bad int)
TEXT ·sgdAVX2(SB), NOSPLIT, $0-40
	MOVQ w+0(FP), AX
	MOVQ grad+8(FP), BX
	MOVQ n+16(FP), CX
	MOVQ c+24(FP), DX
	PROLOGUE

sgdLoop:
	VMOVUPS (AX), Y0
	GRADIENT
	VMULPS  Y1, Y10, Y1
	VSUBPS  Y1, Y0, Y0
	VMOVUPS Y0, (AX)
	VSUBPS  Y0, Y0, Y0
	VCMPPS  $3, Y0, Y0, Y0
	VORPS   Y0, Y15, Y15
	ADDQ    $32, AX
	ADDQ    $32, BX
	SUBQ    $8, CX
	JNZ     sgdLoop
	VMOVMSKPS Y15, AX
	VZEROUPPER
	MOVQ    AX, bad+32(FP)
	RET

// func adagradAVX2(w, a, grad *float32, n int, c *Constants) (bad int)
TEXT ·adagradAVX2(SB), NOSPLIT, $0-48
	MOVQ w+0(FP), AX
	MOVQ a+8(FP), SI
	MOVQ grad+16(FP), BX
	MOVQ n+24(FP), CX
	MOVQ c+32(FP), DX
	PROLOGUE
	VBROADCASTSS EPSILON(DX), Y9
	VXORPS Y8, Y8, Y8

adagradLoop:
	VMOVUPS (AX), Y0
	GRADIENT
	VMULPS  Y1, Y1, Y2
	VADDPS  (SI), Y2, Y2
	VSQRTPS Y2, Y3
	VADDPS  Y9, Y3, Y3
	VMULPS  Y1, Y10, Y1
	VDIVPS  Y3, Y1, Y1
	VSUBPS  Y1, Y0, Y1
	VCMPPS  $0, Y8, Y3, Y4      // no step where the root is zero
	VBLENDVPS Y4, Y0, Y1, Y1
	VMOVUPS Y1, (AX)
	VMOVUPS Y2, (SI)
	VSUBPS  Y1, Y1, Y1
	VSUBPS  Y2, Y2, Y2
	VCMPPS  $3, Y2, Y1, Y1
	VORPS   Y1, Y15, Y15
	ADDQ    $32, AX
	ADDQ    $32, SI
	ADDQ    $32, BX
	SUBQ    $8, CX
	JNZ     adagradLoop
	VMOVMSKPS Y15, AX
	VZEROUPPER
	MOVQ    AX, bad+40(FP)
	RET

// func adamAVX2(w, m, v, grad *float32, n int, c *Constants) (bad int)
TEXT ·adamAVX2(SB), NOSPLIT, $0-56
	MOVQ w+0(FP), AX
	MOVQ m+8(FP), SI
	MOVQ v+16(FP), DI
	MOVQ grad+24(FP), BX
	MOVQ n+32(FP), CX
	MOVQ c+40(FP), DX
	PROLOGUE
	VBROADCASTSS EPSILON(DX), Y9
	VXORPS Y8, Y8, Y8
	VBROADCASTSS TAKE1(DX), Y7
	VBROADCASTSS TAKE2(DX), Y6
	VBROADCASTSS UNBIAS(DX), Y5

adamLoop:
	VMOVUPS (AX), Y0
	GRADIENT
	VMOVUPS (SI), Y2
	VMOVUPS (DI), Y3
	VSUBPS  Y2, Y1, Y4          // g − m
	VMULPS  Y4, Y7, Y4
	VADDPS  Y4, Y2, Y2
	VMULPS  Y1, Y1, Y4
	VSUBPS  Y3, Y4, Y4          // g² − v
	VMULPS  Y4, Y6, Y4
	VADDPS  Y4, Y3, Y3
	VMOVUPS Y2, (SI)
	VMOVUPS Y3, (DI)
	VMULPS  Y3, Y5, Y4
	VSQRTPS Y4, Y4
	VADDPS  Y9, Y4, Y4
	VMULPS  Y2, Y10, Y1
	VDIVPS  Y4, Y1, Y1
	VSUBPS  Y1, Y0, Y1
	VCMPPS  $0, Y8, Y4, Y4      // no step where the root is zero
	VBLENDVPS Y4, Y0, Y1, Y1
	VMOVUPS Y1, (AX)
	VSUBPS  Y1, Y1, Y1
	VSUBPS  Y2, Y2, Y2
	VSUBPS  Y3, Y3, Y3
	VADDPS  Y2, Y3, Y3
	VCMPPS  $3, Y3, Y1, Y1
	VORPS   Y1, Y15, Y15
	ADDQ    $32, AX
	ADDQ    $32, SI
	ADDQ    $32, DI
	ADDQ    $32, BX
	SUBQ    $8, CX
	JNZ     adamLoop
	VMOVMSKPS Y15, AX
	VZEROUPPER
	MOVQ    AX, bad+48(FP)
	RET

DATA exponent<>+0(SB)/4, $0x7f800000
GLOBL exponent<>(SB), RODATA|NOPTR, $4
DATA carry<>+0(SB)/4, $0x00800000
GLOBL carry<>(SB), RODATA|NOPTR, $4

// func finiteAVX2(x *float32, n int) (bad int)
// The exponent is all ones exactly for infinities and NaN, and only then does
// adding one to it carry into the sign's place.
TEXT ·finiteAVX2(SB), NOSPLIT, $0-24
	MOVQ x+0(FP), AX
	MOVQ n+8(FP), CX
	VBROADCASTSS exponent<>(SB), Y14
	VBROADCASTSS carry<>(SB), Y13
	VPXOR Y15, Y15, Y15

	CMPQ CX, $32
	JLT  finiteTail

finiteLoop:
	VPAND  (AX), Y14, Y0
	VPAND  32(AX), Y14, Y1
	VPAND  64(AX), Y14, Y2
	VPAND  96(AX), Y14, Y3
	VPADDD Y13, Y0, Y0
	VPADDD Y13, Y1, Y1
	VPADDD Y13, Y2, Y2
	VPADDD Y13, Y3, Y3
	VPOR   Y0, Y1, Y0
	VPOR   Y2, Y3, Y2
	VPOR   Y0, Y15, Y15
	VPOR   Y2, Y15, Y15
	ADDQ   $128, AX
	SUBQ   $32, CX
	CMPQ   CX, $32
	JGE    finiteLoop

finiteTail:
	TESTQ CX, CX
	JZ    finiteDone
	VPAND  (AX), Y14, Y0
	VPADDD Y13, Y0, Y0
	VPOR   Y0, Y15, Y15
	ADDQ   $32, AX
	SUBQ   $8, CX
	JMP    finiteTail

finiteDone:
	VMOVMSKPS Y15, AX
	VZEROUPPER
	MOVQ AX, bad+16(FP)
	RET
