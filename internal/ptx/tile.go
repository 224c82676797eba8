package ptx

import (
	"tenon.dev/fault"
	"tenon.dev/internal/kir"
)

const tileSymbol = "tiles"

// tilePlan is where the tiles of a program live.
type tilePlan struct{}

func planTiles(p *kir.Program, t Target, sm int) (*tilePlan, error) {
	if len(p.Tiles) > 0 {
		return nil, fault.New(fault.Unsupported, "tiles are not there yet")
	}
	return &tilePlan{}, nil
}

func (t *tilePlan) static() int                  { return 0 }
func (t *tilePlan) dynamic() int                 { return 0 }
func (t *tilePlan) pipelined(in *kir.Instr) bool { return false }
func (f *function) tilePrologue()                {}
func (f *function) pipeline(in *kir.Instr)       {}
func (f *function) tileInstr(in *kir.Instr)      { f.fail(in, "operation %v", in.Op) }
