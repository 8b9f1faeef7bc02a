package bareloop

import (
	"bytes"
	"fmt"
	"math/bits"
	"net"
	"sync"
)

// Config of a run. Servers is a power of two.
type Config struct {
	Bits    int // keys lie below 2^Bits
	Batch   int // rows
	Workers int
	Servers int
}

// Result of a run.
type Result struct {
	Rows  int
	Loss  float64 // progressive log-loss: measured on each row before its update, averaged
	Bytes int64   // that crossed the sockets
}

// Validate reports an impossible value.
func (c Config) Validate() error {
	if c.Bits < 1 || c.Bits > 31 || c.Batch < 1 || c.Workers < 1 || c.Servers < 1 || bits.OnesCount(uint(c.Servers)) != 1 {
		return fmt.Errorf("bareloop: impossible configuration %+v", c)
	}
	return nil
}

// Run trains on text, one pass.
func Run(text []byte, c Config) (Result, error) {
	if err := c.Validate(); err != nil {
		return Result{}, err
	}
	var serving sync.WaitGroup
	listeners := make([]net.Listener, c.Servers)
	tables := make([][]float32, c.Servers)
	for s := range listeners {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return Result{}, err
		}
		defer ln.Close()
		listeners[s], tables[s] = ln, newTable(2<<c.Bits/c.Servers)
		for range c.Workers {
			serving.Go(func() {
				conn, err := ln.Accept()
				if err != nil {
					return
				}
				defer conn.Close()
				serve(conn, tables[s])
			})
		}
	}
	results := make([]Result, c.Workers)
	var working sync.WaitGroup
	for i, part := range cut(text, c.Workers) {
		working.Go(func() { results[i] = newWorker(c, listeners).run(part) })
	}
	working.Wait()
	serving.Wait()
	for _, t := range tables {
		free(t)
	}
	var r Result
	for _, w := range results {
		r.Rows += w.Rows
		r.Loss += w.Loss
		r.Bytes += w.Bytes
	}
	if r.Rows > 0 {
		r.Loss /= float64(r.Rows)
	}
	return r, nil
}

// cut cuts text into n parts of about the same size, each of whole lines.
func cut(text []byte, n int) [][]byte {
	parts := make([][]byte, n)
	from := 0
	for i := range parts {
		to := max(from, len(text)*(i+1)/n)
		if i < n-1 {
			if nl := bytes.IndexByte(text[to:], '\n'); nl >= 0 {
				to += nl + 1
			} else {
				to = len(text)
			}
		}
		parts[i] = text[from:to]
		from = to
	}
	return parts
}
