package wire

import "math"

// RequestWriter writes requests. The order of calls is Start, then for each
// section Section, Barrier (if any), Push (if any), PushBlock …, PushRows …, PullBlock …,
// PullKeys …, then Finish.
type RequestWriter struct {
	buf      *Buffer
	sections uint32
	section  int // offset of the open section in the body, -1: none
	counts   [4]uint32
	flags    uint32
	answer   int
}

// The places in counts, which are those in the layout too.
const (
	pushedBlocks = iota
	pushedRows
	pulledBlocks
	pulledKeys
)

// Start begins a message in b.
func (w *RequestWriter) Start(b *Buffer, job [16]byte, seq uint64) {
	*w = RequestWriter{buf: b, section: -1, answer: responseHeader}
	h := b.Extend(requestHeader)
	le.PutUint16(h, Version)
	le.PutUint16(h[2:], kindRequest)
	copy(h[8:24], job[:])
	le.PutUint64(h[24:], seq)
}

// Section begins a shard's section and ends the one before.
func (w *RequestWriter) Section(shard int, generation int64) {
	w.close()
	w.section = len(w.buf.Body())
	w.sections++
	w.answer += responseSection
	h := w.buf.Extend(requestSection)
	le.PutUint32(h, uint32(shard))
	le.PutUint32(h[4:], 0)
	le.PutUint64(h[8:], uint64(generation))
}

// Barrier says what the section means to the shard's barrier; to be called right
// after Section.
func (w *RequestWriter) Barrier(b Barrier) {
	w.flags |= flagBarrier
	switch b.Kind {
	case Await:
		w.flags |= flagAwait
	case Idle:
		w.flags |= flagIdle
	}
	h := w.buf.Extend(barrierHeader)
	le.PutUint64(h, uint64(b.Step))
	copy(h[8:], b.Trainer[:])
}

// Push makes the section a push of part; More marks all but the last part.
func (w *RequestWriter) Push(m *Meta, part int) {
	w.flags |= flagPush
	if m.Last {
		w.flags |= flagLast
	}
	if m.Void {
		w.flags |= flagVoid
	}
	if m.Gap {
		w.flags |= flagGap
	}
	h := w.buf.Extend(pushHeader)
	le.PutUint64(h, uint64(m.Pass))
	le.PutUint64(h[8:], uint64(m.Rank))
	le.PutUint64(h[16:], uint64(m.N))
	le.PutUint64(h[24:], uint64(m.Token))
	le.PutUint64(h[32:], math.Float64bits(m.Loss))
	le.PutUint64(h[40:], math.Float64bits(m.Weight))
	le.PutUint32(h[48:], uint32(m.Records))
	le.PutUint32(h[52:], uint32(part))
}

// More says that the section's push goes on in another message.
func (w *RequestWriter) More() { w.flags |= flagMore }

// PushBlock adds a dense block's gradient.
func (w *RequestWriter) PushBlock(param uint16, block uint32, values []float32) {
	w.counts[pushedBlocks]++
	h := w.buf.Extend(arrayHeader)
	le.PutUint32(h, uint32(param))
	le.PutUint32(h[4:], block)
	le.PutUint64(h[8:], uint64(len(values)))
	w.pad(copy(w.buf.Extend(4*len(values)), bytesOf(values)))
}

// PushRows adds the gradients of rows.
func (w *RequestWriter) PushRows(param uint16, keys []uint64, values []float32) {
	w.counts[pushedRows]++
	w.keys(param, keys, len(values))
	w.pad(copy(w.buf.Extend(4*len(values)), bytesOf(values)))
}

// PullBlock asks for a dense block of n values.
func (w *RequestWriter) PullBlock(param uint16, block uint32, n int) {
	w.counts[pulledBlocks]++
	w.answer += 4 * n
	h := w.buf.Extend(blockRef)
	le.PutUint32(h, uint32(param))
	le.PutUint32(h[4:], block)
}

// PullKeys asks for rows of dim values.
func (w *RequestWriter) PullKeys(param uint16, keys []uint64, dim int) {
	w.counts[pulledKeys]++
	w.answer += 4 * dim * len(keys)
	w.keys(param, keys, 0)
}

// Size is the number of bytes written so far.
func (w *RequestWriter) Size() int { return len(w.buf.Body()) }

// AnswerSize is about the number of bytes of the answer to what is written.
func (w *RequestWriter) AnswerSize() int { return w.answer }

// Finish ends the message.
func (w *RequestWriter) Finish() {
	w.close()
	le.PutUint32(w.buf.Body()[4:], w.sections)
}

func (w *RequestWriter) keys(param uint16, keys []uint64, values int) {
	h := w.buf.Extend(arrayHeader)
	le.PutUint32(h, uint32(param))
	le.PutUint32(h[4:], uint32(len(keys)))
	le.PutUint64(h[8:], uint64(values))
	copy(w.buf.Extend(8*len(keys)), bytesOf(keys))
}

func (w *RequestWriter) pad(written int) { clear(w.buf.Extend(padded(written) - written)) }

func (w *RequestWriter) close() {
	if w.section < 0 {
		return
	}
	h := w.buf.Body()[w.section:]
	le.PutUint32(h[4:], w.flags)
	for i, n := range w.counts {
		le.PutUint32(h[16+4*i:], n)
	}
	le.PutUint64(h[32:], uint64(len(h)))
	w.flags, w.counts = 0, [4]uint32{}
}

// Decode reads a request, reusing r's memory. Its slices are views into body.
func (r *Request) Decode(body []byte) error {
	s := scanner{rest: body}
	head, n, err := s.header(kindRequest, requestHeader, requestSection)
	if err != nil {
		return err
	}
	copy(r.Job[:], head[8:24])
	r.Seq = le.Uint64(head[24:])
	r.Shards = sized(r.Shards, n)
	for i := range r.Shards {
		if err := r.Shards[i].decode(&s); err != nil {
			return err
		}
	}
	if len(s.rest) != 0 {
		return malformed("%d bytes behind the last section", len(s.rest))
	}
	return nil
}

func (r *ShardRequest) decode(message *scanner) error {
	head := message.take(requestSection)
	if message.bad {
		return malformed("a section is cut short")
	}
	size := le.Uint64(head[32:])
	if size < requestSection || size%8 != 0 || size-requestSection > uint64(len(message.rest)) {
		return malformed("a section of %d bytes", size)
	}
	s := scanner{rest: message.take(int(size) - requestSection)}
	r.Shard = int(le.Uint32(head))
	r.Generation = int64(le.Uint64(head[8:]))
	flag := le.Uint32(head[4:])
	if flag >= flags || flag&flagPush == 0 && flag&(flagMore|flagLast|flagVoid|flagGap) != 0 {
		return malformed("flags %#x", flag)
	}
	if err := r.decodeBarrier(&s, flag); err != nil {
		return err
	}
	blocks, rows := le.Uint32(head[16:]), le.Uint32(head[20:])
	if flag&flagPush == 0 && blocks+rows != 0 {
		return malformed("values without a push")
	}
	r.Push = nil
	if flag&flagPush != 0 {
		if err := r.decodePush(&s, flag, blocks, rows); err != nil {
			return err
		}
	}
	return r.decodePull(&s, le.Uint32(head[24:]), le.Uint32(head[28:]))
}

// decodeBarrier reads the head that says what the section means to a barrier: a
// push arrives, anything else awaits or is idle.
func (r *ShardRequest) decodeBarrier(s *scanner, flag uint32) error {
	r.Barrier = Barrier{}
	switch flag & (flagPush | flagBarrier | flagAwait | flagIdle) {
	case 0, flagPush:
		return nil
	case flagPush | flagBarrier:
		r.Barrier.Kind = Arrive
	case flagBarrier | flagAwait:
		r.Barrier.Kind = Await
	case flagBarrier | flagIdle:
		r.Barrier.Kind = Idle
	default:
		return malformed("flags %#x", flag)
	}
	h := s.take(barrierHeader)
	if s.bad {
		return malformed("a section is cut short")
	}
	r.Barrier.Step = int64(le.Uint64(h))
	copy(r.Barrier.Trainer[:], h[8:])
	if r.Barrier.Step < 0 {
		return malformed("a negative step")
	}
	return nil
}

func (r *ShardRequest) decodePush(s *scanner, flag, blocks, rows uint32) error {
	h := s.take(pushHeader)
	if s.bad || (uint64(blocks)+uint64(rows))*arrayHeader > uint64(len(s.rest)) {
		return malformed("a push is cut short")
	}
	p := &r.push
	p.Meta = Meta{
		Pass: int(int64(le.Uint64(h))), Rank: int64(le.Uint64(h[8:])), N: int64(le.Uint64(h[16:])),
		Token: int64(le.Uint64(h[24:])), Loss: math.Float64frombits(le.Uint64(h[32:])),
		Weight:  math.Float64frombits(le.Uint64(h[40:])),
		Records: int(le.Uint32(h[48:])), Last: flag&flagLast != 0, Void: flag&flagVoid != 0, Gap: flag&flagGap != 0,
	}
	if p.Pass < 0 || p.Rank < 0 || p.N < 0 {
		return malformed("a negative pass, rank or batch")
	}
	p.Part, p.More, p.Seen = int(le.Uint32(h[52:])), flag&flagMore != 0, -1
	p.Dense = sized(p.Dense, int(blocks))
	for i := range p.Dense {
		if err := p.Dense[i].decode(s); err != nil {
			return err
		}
	}
	p.Sparse = sized(p.Sparse, int(rows))
	for i := range p.Sparse {
		if err := p.Sparse[i].decode(s); err != nil {
			return err
		}
	}
	r.Push = p
	return nil
}

func (d *DenseBlock) decode(s *scanner) error {
	h := s.take(arrayHeader)
	if s.bad {
		return malformed("a dense block is cut short")
	}
	param, n := le.Uint32(h), le.Uint64(h[8:])
	if param > math.MaxUint16 || n > math.MaxUint32 {
		return malformed("a dense block of parameter %d with %d values", param, n)
	}
	d.Param, d.Block = uint16(param), le.Uint32(h[4:])
	d.Values = floats(s.array(uint32(n), 4))
	if s.bad {
		return malformed("a dense block is cut short")
	}
	return nil
}

func (d *SparseRows) decode(s *scanner) error {
	h := s.take(arrayHeader)
	if s.bad {
		return malformed("rows are cut short")
	}
	param, n, values := le.Uint32(h), le.Uint32(h[4:]), le.Uint64(h[8:])
	if param > math.MaxUint16 || values > math.MaxUint32 {
		return malformed("rows of parameter %d with %d values", param, values)
	}
	d.Param = uint16(param)
	d.Keys = words(s.array(n, 8))
	d.Values = floats(s.array(uint32(values), 4))
	if s.bad {
		return malformed("rows are cut short")
	}
	return nil
}

func (r *ShardRequest) decodePull(s *scanner, blocks, keys uint32) error {
	if uint64(blocks)*blockRef+uint64(keys)*arrayHeader > uint64(len(s.rest)) {
		return malformed("a pull is cut short")
	}
	r.Dense = sized(r.Dense, int(blocks))
	for i := range r.Dense {
		h := s.take(blockRef)
		if p := le.Uint32(h); p > math.MaxUint16 {
			return malformed("parameter %d", p)
		}
		r.Dense[i] = BlockRef{Param: uint16(le.Uint32(h)), Block: le.Uint32(h[4:])}
	}
	r.Sparse = sized(r.Sparse, int(keys))
	for i := range r.Sparse {
		h := s.take(arrayHeader)
		if s.bad || le.Uint32(h) > math.MaxUint16 || le.Uint64(h[8:]) != 0 {
			return malformed("pulled keys are cut short")
		}
		r.Sparse[i] = KeyRef{Param: uint16(le.Uint32(h)), Keys: words(s.array(le.Uint32(h[4:]), 8))}
	}
	if s.bad || len(s.rest) != 0 {
		return malformed("a section's contents do not fill it")
	}
	return nil
}

// sized returns a slice of n elements that reuses the memory of s, and what
// its elements own.
func sized[T any](s []T, n int) []T {
	if cap(s) < n {
		s = append(s[:cap(s)], make([]T, n-cap(s))...)
	}
	return s[:n]
}
