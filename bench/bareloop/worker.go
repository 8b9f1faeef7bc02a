package bareloop

import (
	"bufio"
	"encoding/binary"
	"io"
	"math"
	"math/bits"
	"net"
)

// batch is one batch of a worker: its rows and, by server, its distinct keys,
// their weights and their gradients.
type batch struct {
	rows
	slot   []uint32 // of each key of rows: its place in its server's list
	server []uint8
	keys   [][]uint32
	weight [][]float32
	grad   [][]float32
}

func newBatch(c Config) *batch {
	return &batch{rows: newRows(c.Batch), slot: make([]uint32, c.Batch*rowKeys), server: make([]uint8, c.Batch*rowKeys),
		keys: make([][]uint32, c.Servers), weight: make([][]float32, c.Servers), grad: make([][]float32, c.Servers)}
}

type worker struct {
	Config
	conns   []net.Conn
	readers []*bufio.Reader
	result  Result
	buf     []byte

	// The hash table that finds distinct keys: key, the batch that wrote the
	// slot, and the key's place in its server's list.
	key, stamp, place []uint32
	now               uint32
}

func newWorker(c Config, servers []net.Listener) *worker {
	size := 1 << bits.Len(uint(2*c.Batch*rowKeys-1))
	w := &worker{Config: c, key: make([]uint32, size), stamp: make([]uint32, size), place: make([]uint32, size)}
	for _, ln := range servers {
		conn, err := net.Dial("tcp", ln.Addr().String())
		if err != nil {
			panic(err)
		}
		w.conns = append(w.conns, conn)
		w.readers = append(w.readers, bufio.NewReaderSize(conn, bufferSize))
	}
	return w
}

func (w *worker) run(text []byte) Result {
	defer func() {
		for _, c := range w.conns {
			c.Close()
		}
	}()
	now, before := newBatch(w.Config), newBatch(w.Config)
	for {
		text = text[now.parse(text, w.Batch):]
		w.distinct(now)
		w.send(before, now)
		w.receive(now)
		if now.n == 0 {
			return w.result
		}
		w.compute(now)
		now, before = before, now
	}
}

// distinct finds the distinct keys of a batch and sorts them by server.
func (w *worker) distinct(b *batch) {
	w.now++
	mask, shift := uint32(w.Servers-1), bits.TrailingZeros(uint(w.Servers))
	size := len(w.key)
	for s := range b.keys {
		b.keys[s] = b.keys[s][:0]
	}
	for i, k := range b.rows.keys[:b.n*rowKeys] {
		h := int(k*2654435769) & (size - 1)
		for w.stamp[h] == w.now && w.key[h] != k {
			h = (h + 1) & (size - 1)
		}
		s := k & mask
		if w.stamp[h] != w.now {
			w.stamp[h], w.key[h] = w.now, k
			w.place[h] = uint32(len(b.keys[s]))
			b.keys[s] = append(b.keys[s], k>>shift)
		}
		b.slot[i], b.server[i] = w.place[h], uint8(s)
	}
}

// send pushes the gradients of the batch before and asks for the weights of
// this one.
func (w *worker) send(before, now *batch) {
	for s, conn := range w.conns {
		pushed := 0
		if before.n > 0 {
			pushed = len(before.keys[s])
		}
		b := binary.LittleEndian.AppendUint32(w.buf[:0], uint32(pushed))
		b = binary.LittleEndian.AppendUint32(b, uint32(len(now.keys[s])))
		b = append(b, raw(before.keys[s][:pushed])...)
		b = append(b, raw(before.grad[s][:pushed])...)
		b = append(b, raw(now.keys[s])...)
		if _, err := conn.Write(b); err != nil {
			panic(err)
		}
		w.result.Bytes += int64(len(b) + 4*len(now.keys[s]))
		w.buf = b
	}
}

func (w *worker) receive(b *batch) {
	for s, r := range w.readers {
		n := len(b.keys[s])
		if cap(b.weight[s]) < n {
			b.weight[s] = make([]float32, 2*n)
			b.grad[s] = make([]float32, 2*n)
		}
		b.weight[s], b.grad[s] = b.weight[s][:n], b.grad[s][:n]
		clear(b.grad[s])
		if _, err := io.ReadFull(r, raw(b.weight[s])); err != nil {
			panic(err)
		}
	}
}

// compute adds up gradients and loss.
func (w *worker) compute(b *batch) {
	for i := range b.n {
		slot, server := b.slot[i*rowKeys:(i+1)*rowKeys], b.server[i*rowKeys:(i+1)*rowKeys]
		var z float32
		for j := range slot {
			z += b.weight[server[j]][slot[j]]
		}
		d := sigmoid(z) - b.labels[i]
		for j := range slot {
			b.grad[server[j]][slot[j]] += d
		}
		w.result.Loss += logLoss(b.labels[i], z)
	}
	w.result.Rows += b.n
}

func sigmoid(z float32) float32 { return float32(1 / (1 + math.Exp(-float64(z)))) }

func logLoss(y, z float32) float64 {
	if y > 0 {
		z = -z
	}
	if z > 0 {
		return float64(z) + math.Log1p(math.Exp(-float64(z)))
	}
	return math.Log1p(math.Exp(float64(z)))
}
