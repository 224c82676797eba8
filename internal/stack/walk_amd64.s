#include "textflag.h"

// func walk(pcs []uintptr) int
TEXT ·walk(SB), NOSPLIT, $0-32
	MOVQ pcs_base+0(FP), DI
	MOVQ pcs_len+8(FP), SI
	MOVQ (TLS), CX          // the goroutine, which begins with the bounds of its stack
	MOVQ 0(CX), R9
	MOVQ 8(CX), R8
	SUBQ $16, R8
	MOVQ BP, BX
	XORQ AX, AX

loop:
	CMPQ AX, SI
	JGE  done
	CMPQ BX, R9
	JCS  done
	CMPQ BX, R8
	JHI  done
	MOVQ 8(BX), DX          // the return address stands above the caller's frame pointer
	MOVQ DX, (DI)(AX*8)
	INCQ AX
	MOVQ 0(BX), DX
	CMPQ DX, BX
	JLS  done
	MOVQ DX, BX
	JMP  loop

done:
	MOVQ AX, ret+24(FP)
	RET

// func Goroutine() uintptr
TEXT ·Goroutine(SB), NOSPLIT, $0-8
	MOVQ (TLS), AX // the runtime's record of the goroutine, which never moves
	MOVQ AX, ret+0(FP)
	RET
