package wire

import "math"

// maxReason bounds the explanation of a refusal.
const maxReason = 1024

// ResponseWriter writes responses. The order of calls is Start, then for each
// section of the request Section, Values …, Answer, then Finish.
type ResponseWriter struct {
	buf      *Buffer
	sections uint32
	section  int
}

var _ Sink = (*ResponseWriter)(nil)

// Start begins a message in b.
func (w *ResponseWriter) Start(b *Buffer, seq uint64) {
	*w = ResponseWriter{buf: b}
	h := b.Extend(responseHeader)
	le.PutUint16(h, Version)
	le.PutUint16(h[2:], kindResponse)
	le.PutUint64(h[8:], seq)
}

// Section begins the answer to a shard's section.
func (w *ResponseWriter) Section(shard int, generation int64) {
	w.sections++
	w.section = len(w.buf.Body())
	h := w.buf.Extend(responseSection)
	le.PutUint32(h, uint32(shard))
	le.PutUint64(h[8:], uint64(generation))
}

// Values returns the place for the next n pulled values, to be filled before
// the next call.
func (w *ResponseWriter) Values(n int) []float32 {
	return floats(w.buf.Extend(4 * n))
}

// Answer ends the section. A refusal drops the values that it has so far.
func (w *ResponseWriter) Answer(code Code, finished bool, next int64, reason string) {
	h := w.buf.Body()[w.section:]
	values := (len(h) - responseSection) / 4
	if code.Refused() {
		w.buf.mem = w.buf.mem[:len(w.buf.mem)-4*values]
		values = 0
	}
	reason = reason[:min(len(reason), maxReason)]
	clear(w.buf.Extend(padded(4*values) - 4*values))
	copy(w.buf.Extend(len(reason)), reason)
	clear(w.buf.Extend(padded(len(reason)) - len(reason)))
	h = w.buf.Body()[w.section:]
	h[4], h[5] = byte(code), 0
	if finished {
		h[5] = flagFinished
	}
	le.PutUint16(h[6:], uint16(len(reason)))
	le.PutUint64(h[16:], uint64(next))
	le.PutUint64(h[24:], uint64(values))
}

// Finish ends the message.
func (w *ResponseWriter) Finish() { le.PutUint32(w.buf.Body()[4:], w.sections) }

// Decode reads a response, reusing r's memory. Its slices are views into body.
func (r *Response) Decode(body []byte) error {
	s := scanner{rest: body}
	head, n, err := s.header(kindResponse, responseHeader, responseSection)
	if err != nil {
		return err
	}
	r.Seq = le.Uint64(head[8:])
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

func (r *ShardResponse) decode(s *scanner) error {
	h := s.take(responseSection)
	if s.bad {
		return malformed("a section is cut short")
	}
	values := le.Uint64(h[24:])
	if Code(h[4]) >= codes || h[5]&^flagFinished != 0 || values > math.MaxUint32 {
		return malformed("code %d, flags %#x, %d values", h[4], h[5], values)
	}
	*r = ShardResponse{
		Shard: int(le.Uint32(h)), Generation: int64(le.Uint64(h[8:])), Code: Code(h[4]),
		Finished: h[5] == flagFinished, Next: int64(le.Uint64(h[16:])),
		Values: floats(s.array(uint32(values), 4)),
	}
	if reason := s.array(uint32(le.Uint16(h[6:])), 1); len(reason) != 0 {
		r.Reason = string(reason)
	}
	if s.bad {
		return malformed("a section is cut short")
	}
	return nil
}
