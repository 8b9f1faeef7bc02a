#include "textflag.h"

// func fetch32(base unsafe.Pointer, index *uint32, n int, shift uint, size uintptr)
TEXT ·fetch32(SB), NOSPLIT, $0-40
	MOVQ base+0(FP), DI
	MOVQ index+8(FP), SI
	MOVQ n+16(FP), BX
	MOVQ shift+24(FP), CX
	MOVQ size+32(FP), DX

loop32:
	MOVL  (SI), AX
	SHRQ  CX, AX
	IMULQ DX, AX
	PREFETCHT0 (DI)(AX*1)
	ADDQ  $4, SI
	DECQ  BX
	JNZ   loop32
	RET

// func fetch64(base unsafe.Pointer, index *uint64, n int, shift uint, size uintptr)
TEXT ·fetch64(SB), NOSPLIT, $0-40
	MOVQ base+0(FP), DI
	MOVQ index+8(FP), SI
	MOVQ n+16(FP), BX
	MOVQ shift+24(FP), CX
	MOVQ size+32(FP), DX

loop64:
	MOVQ  (SI), AX
	SHRQ  CX, AX
	IMULQ DX, AX
	PREFETCHT0 (DI)(AX*1)
	ADDQ  $8, SI
	DECQ  BX
	JNZ   loop64
	RET

// func fetchRows(blocks *[]float32, count int, rows *uint32, n int, shift uint, size int)
TEXT ·fetchRows(SB), NOSPLIT, $0-48
	MOVQ blocks+0(FP), DI
	MOVQ count+8(FP), R8
	MOVQ rows+16(FP), SI
	MOVQ n+24(FP), BX
	MOVQ shift+32(FP), CX
	MOVQ size+40(FP), DX
	MOVQ $1, R9
	SHLQ CX, R9
	DECQ R9              // the row's number in its block

loopRows:
	MOVL  (SI), AX
	MOVQ  AX, R10
	SHRQ  CX, R10
	CMPQ  R10, R8
	JAE   next
	LEAQ  (R10)(R10*2), R10
	MOVQ  (DI)(R10*8), R11 // a slice is three words, the first points to its elements
	ANDQ  R9, AX
	IMULQ DX, AX
	PREFETCHT0 (R11)(AX*1)

next:
	ADDQ  $4, SI
	DECQ  BX
	JNZ   loopRows
	RET
