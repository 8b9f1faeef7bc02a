package pserver

import (
	"fmt"

	"starfish/internal/hugepage"
	"starfish/internal/wire"
	"starfish/job"
	"starfish/pserver/optimizer"
)

// dense holds the blocks of one dense parameter that lie on a shard.
type dense struct {
	*parameter
	at []denseBlock // in the order of parameter.blocks
	// words is the number of words of all the blocks.
	words int64
	// cut is not nil while a cut has not read all blocks.
	cut *denseCut
	// mark is the number of the last push that named a block; squares is the
	// sum of its gradient's squares, if the norm is clipped, and now is what
	// its blocks are applied with.
	mark    uint64
	squares float64
	now     optimizer.Step
}

// denseBlock is one block: n weights, then the optimizer's words of state.
type denseBlock struct {
	words []float32
	n     int
	// mark is the number of the last push that named the block.
	mark uint64
}

func (b *denseBlock) weights() []float32 { return b.words[:b.n] }
func (b *denseBlock) state() []float32   { return b.words[b.n:] }

// newDense makes the blocks, which have no memory yet.
func newDense(p *parameter) *dense {
	d := &dense{parameter: p, at: make([]denseBlock, len(p.blocks))}
	for i, block := range p.blocks {
		n := p.blockLen(block)
		d.at[i].n = n
		d.words += int64(n + p.opt.Words(n))
	}
	return d
}

// allocate gives the blocks their memory, unless they have it.
func (d *dense) allocate() {
	if len(d.at) == 0 || d.at[0].words != nil {
		return
	}
	memory := make([]float32, d.words)
	hugepage.Advise(memory)
	for i := range d.at {
		b := &d.at[i]
		words := b.n + d.opt.Words(b.n)
		b.words, memory = memory[:words:words], memory[words:]
	}
}

// fill gives the blocks their initial values.
func (d *dense) fill() {
	d.allocate()
	for i, block := range d.blocks {
		b := &d.at[i]
		d.init.Elements(b.weights(), uint64(block)*job.BlockSize)
		d.opt.Init(b.weights(), b.state())
	}
}

// check validates one block of a push; mark is the push's number.
func (d *dense) check(v *wire.DenseBlock, mark uint64) (optimizer.Fault, error) {
	i, err := d.local(v.Block)
	if err != nil {
		return 0, err
	}
	b := &d.at[i]
	if len(v.Values) != b.n {
		return 0, fmt.Errorf("%w: %d values for block %d of parameter %q, which has %d",
			ErrInvalid, len(v.Values), v.Block, d.Name, b.n)
	}
	if b.mark == mark {
		return 0, fmt.Errorf("%w: block %d of parameter %q comes twice", ErrInvalid, v.Block, d.Name)
	}
	b.mark = mark
	return d.opt.Check(v.Values), nil
}

// measure is called for each block of a push before the first is applied; mark
// is the push's number. The norm
// is that of all the blocks in the push, in their order.
func (d *dense) measure(v *wire.DenseBlock, mark uint64, now moment) {
	if d.mark != mark {
		d.mark, d.squares, d.now = mark, 0, d.step(now)
	}
	if d.Optimizer.ClipNorm > 0 {
		d.squares += optimizer.Squares(v.Values)
	}
}

// apply updates a block that has been checked and measured. It returns the
// index of the first element that became non-finite, or -1.
func (d *dense) apply(v *wire.DenseBlock) int64 {
	at := int(d.place[v.Block])
	if d.cut != nil {
		d.cut.keep(at)
	}
	b := &d.at[at]
	bad := d.opt.Dense(b.weights(), b.state(), v.Values, d.now.Clipped(d.Optimizer.ClipNorm, d.squares))
	if bad < 0 {
		return -1
	}
	return int64(v.Block)*job.BlockSize + int64(bad)
}

// read copies a block's values to the front of dst and returns the rest of dst.
func (d *dense) read(dst []float32, block uint32) []float32 {
	b := &d.at[d.place[block]]
	d.opt.ReadDense(dst[:b.n], b.weights(), b.state())
	return dst[b.n:]
}
