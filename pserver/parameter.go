package pserver

import (
	"fmt"
	"math"

	"starfish/internal/initial"
	"starfish/internal/wire"
	"starfish/job"
	"starfish/pserver/optimizer"
)

// parameter is what a shard knows of one parameter from the start. It never
// changes, and is read without the lock.
type parameter struct {
	job.Parameter
	number int
	opt    optimizer.Optimizer
	init   initial.Values
	// scale turns a summed gradient into the one that is applied. rate is the
	// learning rate where it is always the same.
	scale, rate float32
	shard       int
	of          int

	// elements of a dense parameter in all shards; blocks lists those that lie
	// on this shard, and place says where in the list a block is, or -1.
	elements int64
	blocks   []uint32
	place    []int32

	// flat tells that the table is flat; places are those of its keys.
	flat   bool
	places *places
}

func newParameters(p job.Parameters, shard int) ([]*parameter, error) {
	if p.Shards <= 0 || shard < 0 || shard >= p.Shards {
		return nil, fmt.Errorf("shard %d of %d", shard, p.Shards)
	}
	if len(p.List) > math.MaxUint16+1 {
		return nil, fmt.Errorf("%d parameters are more than messages can number", len(p.List))
	}
	list, names := make([]*parameter, len(p.List)), map[string]bool{}
	for i := range p.List {
		if names[p.List[i].Name] {
			return nil, fmt.Errorf("parameter %q is there twice", p.List[i].Name)
		}
		names[p.List[i].Name] = true
		one, err := newParameter(p, i, shard)
		if err != nil {
			return nil, fmt.Errorf("parameter %q: %w", p.List[i].Name, err)
		}
		list[i] = one
	}
	return list, nil
}

func newParameter(all job.Parameters, number, shard int) (*parameter, error) {
	p := &parameter{Parameter: all.List[number], number: number, shard: shard, of: all.Shards}
	var err error
	if p.opt, err = optimizer.New(p.Optimizer); err != nil {
		return nil, err
	}
	if p.init, err = initial.New(p.Init, all.Seed, p.Name); err != nil {
		return nil, err
	}
	p.rate = float32(p.Optimizer.LearningRate)
	p.scale = float32(1 / p.Divisor)
	if !(p.scale > 0) || p.scale-p.scale != 0 {
		return nil, fmt.Errorf("gradients cannot be divided by %v", p.Divisor)
	}
	if p.Sparse {
		return p, p.checkSparse()
	}
	return p, p.placeBlocks()
}

func (p *parameter) checkSparse() error {
	if p.Dim <= 0 || p.Dim > 1<<24 {
		return fmt.Errorf("rows of %d values", p.Dim)
	}
	if p.Bits < 0 || p.Bits > 64 {
		return fmt.Errorf("keys of %d bits", p.Bits)
	}
	return nil
}

func (p *parameter) placeBlocks() error {
	p.elements = 1
	for _, n := range p.Shape {
		if n <= 0 || p.elements > math.MaxInt64/int64(n) {
			return fmt.Errorf("shape %v", p.Shape)
		}
		p.elements *= int64(n)
	}
	blocks := (p.elements-1)/job.BlockSize + 1
	if blocks > math.MaxInt32 {
		return fmt.Errorf("shape %v has more blocks than messages can number", p.Shape)
	}
	p.place = make([]int32, blocks)
	for b := range p.place {
		p.place[b] = -1
		if job.BlockShard(p.Name, b, p.of) == p.shard {
			p.place[b] = int32(len(p.blocks))
			p.blocks = append(p.blocks, uint32(b))
		}
	}
	return nil
}

// blockLen is the number of elements of a block.
func (p *parameter) blockLen(block uint32) int {
	return int(min(p.elements-int64(block)*job.BlockSize, job.BlockSize))
}

// local is the place of a block on this shard.
func (p *parameter) local(block uint32) (int, error) {
	if int64(block) >= int64(len(p.place)) {
		return 0, fmt.Errorf("%w: block %d of parameter %q, which has %d", ErrInvalid, block, p.Name, len(p.place))
	}
	if p.place[block] < 0 {
		return 0, fmt.Errorf("%w: block %d of parameter %q does not lie on shard %d", ErrInvalid, block, p.Name, p.shard)
	}
	return int(p.place[block]), nil
}

// step is what the update of a moment is made with.
func (p *parameter) step(now moment) optimizer.Step {
	s := optimizer.Step{Scale: p.scale, Rate: p.rate}
	if now.together > 1 && p.Reduction != job.ReductionSum {
		s.Scale = float32(1 / (p.Divisor * float64(now.together)))
	}
	if p.Optimizer.Schedule != (job.ScheduleSettings{}) {
		s.Rate = float32(p.Optimizer.Rate(now.batches))
	}
	return s
}

// params are a shard's parameters by number.
type params []*parameter

func (ps params) get(number uint16, sparse bool) (*parameter, error) {
	if int(number) >= len(ps) {
		return nil, fmt.Errorf("%w: parameter number %d of %d", ErrInvalid, number, len(ps))
	}
	p := ps[number]
	if p.Sparse != sparse {
		return nil, fmt.Errorf("%w: parameter %q is named in the wrong list, sparse is %v", ErrInvalid, p.Name, p.Sparse)
	}
	return p, nil
}

func (ps params) pullSize(dense []wire.BlockRef, sparse []wire.KeyRef) (int, error) {
	n := 0
	for _, r := range dense {
		p, err := ps.get(r.Param, false)
		if err != nil {
			return 0, err
		}
		if _, err := p.local(r.Block); err != nil {
			return 0, err
		}
		n += p.blockLen(r.Block)
	}
	for _, r := range sparse {
		p, err := ps.get(r.Param, true)
		if err != nil {
			return 0, err
		}
		n += len(r.Keys) * p.Dim
	}
	return n, nil
}
