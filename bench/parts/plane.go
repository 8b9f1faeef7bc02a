package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"

	"github.com/sirupsen/logrus"

	"starfish/etcdqueue"
	"starfish/internal/clock"
	"starfish/internal/membership"
	"starfish/internal/store"
	"starfish/internal/store/fake"
	"starfish/internal/transport"
	"starfish/internal/wire"
	"starfish/job"
	"starfish/pserver"
	"starfish/pserver/client"
)

// messageKeys is the number of random keys in a message.
const messageKeys = 32 << 10

// onlyTCP is the way between hosts, taken within one.
type onlyTCP struct{}

func (onlyTCP) Listen(addr string) (net.Listener, error) {
	return net.Listen("tcp", addr) //nolint:forbidigo // a yardstick
}

func (onlyTCP) Dial(ctx context.Context, addr string) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, "tcp", addr) //nolint:forbidigo // a yardstick
}

// planes are the exchanges through the client with a whole pserver of this host:
// as it is done there, over a Unix socket where there are such, and as between
// hosts, over TCP.
func planes() []part {
	var parts []part
	for _, p := range []struct {
		size     string
		elements int
		repeat   int
		target   float64
	}{{"4 KiB", 1 << 10, 2000, 0.6}, {"1 MiB", 1 << 18, 100, 0.7}, {"16 MiB", 1 << 22, 8, 0.7}} {
		for _, way := range []struct {
			name    string
			network transport.Network
		}{{"", transport.TCP}, {", both by TCP", onlyTCP{}}} {
			parts = append(parts, part{name: "push+pull of " + p.size + " ÷ raw TCP" + way.name, unit: "s", target: atLeast(p.target),
				open: func(c *config) (func() (pair, error), func() error, error) {
					return denseRounds(c, p.elements, p.repeat, way.network)
				}})
		}
	}
	for _, dim := range []int{1, 16} {
		parts = append(parts, part{
			name: fmt.Sprintf("push+pull of 32k random keys, dim %d ÷ in-process", dim), unit: "s", target: atLeast(0.5),
			open: func(c *config) (func() (pair, error), func() error, error) { return sparseRounds(c, dim) },
		})
	}
	return parts
}

// plane is a job of one parameter and one shard on a pserver of this process.
type plane struct {
	parameters job.Parameters
	client     *client.Client
	session    *client.Session
	batch      *client.Batch
	n          int64
	cancel     context.CancelFunc
	done       chan error
	dir        string
}

func newPlane(p job.Parameter, n transport.Network) (_ *plane, err error) {
	p.Name, p.Init, p.Divisor, p.Reduction = "p", job.Initializer{Kind: job.InitZeros}, 1, job.ReductionSum
	x := &plane{parameters: job.Parameters{V: 1, Shards: 1, List: []job.Parameter{p}}, done: make(chan error, 1)}
	if x.dir, err = os.MkdirTemp("", "bench-parts-"); err != nil {
		return nil, err
	}
	log := logrus.New()
	log.SetOutput(io.Discard)
	st := store.Prefixed(fake.New(fake.Options{Clock: clock.System}), "/starfish/bench/")
	spec, err := job.ParseSpec(fmt.Appendf(nil, `
job: bench
data: {train: [data]}
model: {type: linear}
shards: 1
queue: {lanes: 1}
checkpoint: {dir: %q, interval: 24h}
run: {pservers: 1, trainers: 1}
`, x.dir), "/", nil)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	x.cancel = cancel
	made, err := job.Create(ctx, st, spec, x.parameters, append(etcdqueue.InitialOps(etcdqueue.Manifest{Chunks: 1}, 1), membership.InitialOwners(1))...)
	if err != nil {
		return nil, err
	}
	server, err := pserver.New(pserver.Config{Store: st, Log: log, Name: "pserver-0", Listen: "127.0.0.1:0", Network: n, Drain: 1})
	if err != nil {
		return nil, err
	}
	go func() { x.done <- server.Run(ctx) }()
	if x.client, err = client.New(client.Config{Store: st, Job: made.UUID, Parameters: x.parameters, Network: n, Log: log}); err != nil {
		return nil, err
	}
	if x.session, err = x.client.Connect(ctx); err != nil {
		return nil, err
	}
	x.batch = x.client.NewBatch()
	return x, nil
}

// exchange pushes and pulls the batch, and waits for the answer.
func (x *plane) exchange() error {
	call, err := x.session.Exchange(context.Background(), x.batch, client.PushMeta{Token: 1, N: x.n}, x.batch)
	if err != nil {
		return err
	}
	x.n++
	return call.Wait(context.Background())
}

// close ends the pserver without a last checkpoint.
func (x *plane) close() error {
	x.session.Close()
	x.cancel()
	err := <-x.done
	return errors.Join(err, os.RemoveAll(x.dir))
}

// denseRounds compares with frames of the same size over a connection.
func denseRounds(c *config, elements, repeat int, n transport.Network) (func() (pair, error), func() error, error) {
	x, err := newPlane(job.Parameter{Shape: []int{elements}, Optimizer: job.OptimizerSettings{Type: job.OptimizerSGD, LearningRate: 0.1}}, n)
	if err != nil {
		return nil, nil, err
	}
	e, err := newEcho()
	if err != nil {
		return nil, nil, errors.Join(err, x.close())
	}
	x.batch.Prepare(nil)
	frame := make([]byte, 4*elements)
	s := sides{of: c.seconds, ours: times(repeat, x.exchange), yardstick: times(repeat, func() error { return e.exchange(frame) })}
	return s.round, func() error { return errors.Join(e.close(), x.close()) }, nil
}

// echo is a connection whose other end answers each frame by one of the same
// size. A frame is its length, four bytes, and so many bytes.
type echo struct {
	listener net.Listener
	conn     net.Conn
	done     chan error
}

func newEcho() (*echo, error) {
	l, err := onlyTCP{}.Listen("127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	e := &echo{listener: l, done: make(chan error, 1)}
	go func() { e.done <- e.serve() }()
	e.conn, err = onlyTCP{}.Dial(context.Background(), l.Addr().String())
	return e, err
}

func (e *echo) serve() error {
	conn, err := e.listener.Accept()
	if err != nil {
		return err
	}
	defer conn.Close()
	var buf []byte
	for {
		buf, err = readFrame(conn, buf)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if _, err := conn.Write(buf); err != nil {
			return err
		}
	}
}

// readFrame reads a frame, its length included, into the buffer if it has room.
func readFrame(from io.Reader, buf []byte) ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(from, head[:]); err != nil {
		return buf, err
	}
	n := 4 + int(binary.LittleEndian.Uint32(head[:]))
	if cap(buf) < n {
		buf = make([]byte, n)
	}
	buf = buf[:n]
	copy(buf, head[:])
	_, err := io.ReadFull(from, buf[4:])
	return buf, err
}

// exchange sends a frame, whose first four bytes become its length, and reads
// the answer over it.
func (e *echo) exchange(frame []byte) error {
	binary.LittleEndian.PutUint32(frame, uint32(len(frame)-4))
	if _, err := e.conn.Write(frame); err != nil {
		return err
	}
	_, err := readFrame(e.conn, frame)
	return err
}

func (e *echo) close() error {
	_ = e.conn.Close()
	return errors.Join(<-e.done, e.listener.Close())
}

// messages are how many different messages of random keys there are.
const messages = 16

// sparseRounds compares with a loop over a shard of the same content, in the
// same process: no client, no connection.
func sparseRounds(c *config, dim int) (func() (pair, error), func() error, error) {
	n := c.keys
	x, err := newPlane(job.Parameter{Sparse: true, Dim: dim, Optimizer: job.OptimizerSettings{Type: job.OptimizerAdagrad, LearningRate: 0.1, Epsilon: 1e-10}}, transport.TCP)
	if err != nil {
		return nil, nil, err
	}
	shard, err := pserver.NewShard(x.parameters, 0, 1, pserver.ShardOptions{})
	if err != nil {
		return nil, nil, errors.Join(err, x.close())
	}
	in := &inProcess{shard: shard, dim: dim, values: make(values, messageKeys*dim), grad: make([]float32, messageKeys*dim)}
	keys := make([]uint64, 0, messageKeys)
	for first := 0; first < n; first += messageKeys { // every row once, in both
		keys = keys[:0]
		for k := first; k < min(first+messageKeys, n); k++ {
			keys = append(keys, spread(k))
		}
		x.batch.Prepare([][]uint64{keys})
		if err := errors.Join(x.exchange(), in.exchange(keys)); err != nil {
			return nil, nil, errors.Join(err, x.close())
		}
	}
	rng := rand.New(rand.NewPCG(1, uint64(dim)))
	var all [messages][]uint64
	for i := range all {
		all[i] = randomKeys(rng, n)
	}
	i, j := 0, 0
	s := sides{of: c.seconds, ours: times(messages, func() error {
		x.batch.Prepare([][]uint64{all[i%messages]})
		i++
		return x.exchange()
	}), yardstick: times(messages, func() error {
		j++
		return in.exchange(all[(j-1)%messages])
	})}
	return s.round, x.close, nil
}

// spread makes a key of a number, so that neighbours are not.
func spread(k int) uint64 { return uint64(k) * 0x9e3779b97f4a7c15 }

// randomKeys are distinct keys out of n.
func randomKeys(rng *rand.Rand, n int) []uint64 {
	seen := map[int]bool{}
	keys := make([]uint64, 0, messageKeys)
	for len(keys) < min(messageKeys, n) {
		if k := rng.IntN(n); !seen[k] {
			seen[k] = true
			keys = append(keys, spread(k))
		}
	}
	return keys
}

// inProcess pushes to and pulls from a shard by calling it.
type inProcess struct {
	shard  *pserver.Shard
	dim    int
	n      int64
	grad   []float32
	values values
}

type values []float32

// Values is the sink of a pull.
func (v values) Values(n int) []float32 { return v[:n] }

func (p *inProcess) exchange(keys []uint64) error {
	push := &wire.PushData{
		Meta:   wire.Meta{Token: 1, N: p.n},
		Sparse: []wire.SparseRows{{Keys: keys, Values: p.grad[:len(keys)*p.dim]}},
	}
	p.n++
	if _, err := p.shard.Push(1, push, nil); err != nil {
		return err
	}
	return p.shard.Pull(nil, []wire.KeyRef{{Keys: keys}}, p.values, nil)
}
