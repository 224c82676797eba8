#include "textflag.h"

// func walk(pcs []uintptr) int
TEXT ·walk(SB), NOSPLIT, $0-32
	MOVD pcs_base+0(FP), R0
	MOVD pcs_len+8(FP), R1
	MOVD 0(g), R7           // the goroutine begins with the bounds of its stack
	MOVD 8(g), R2
	SUB  $16, R2
	MOVD R29, R3
	MOVD $0, R4

loop:
	CMP  R1, R4
	BGE  done
	CMP  R7, R3
	BLO  done
	CMP  R2, R3
	BHI  done
	MOVD 8(R3), R5          // the return address stands above the caller's frame pointer
	MOVD R5, (R0)(R4<<3)
	ADD  $1, R4
	MOVD 0(R3), R5
	CMP  R3, R5
	BLS  done
	MOVD R5, R3
	B    loop

done:
	MOVD R4, ret+24(FP)
	RET

// func Goroutine() uintptr
TEXT ·Goroutine(SB), NOSPLIT, $0-8
	MOVD g, R0 // the runtime's record of the goroutine, which never moves
	MOVD R0, ret+0(FP)
	RET
