package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"

	"starfish/internal/wire"
	"starfish/job"
	"starfish/pserver"
)

// heldDim is the dimension of the rows of the pserver that is measured; a row
// has as many words of state, and 16 bytes are granted for what finds it.
const heldDim = 8

func memories() []part {
	return []part{{
		name: "memory of a pserver ÷ (4 · 2 · 8 + 16) bytes a row of dim 8, adagrad", unit: "bytes a row", target: atMost(1.3),
		open: func(c *config) (func() (pair, error), func() error, error) {
			return memoryRound(c.rows), nothing, nil
		},
	}}
}

// memoryRound fills shards in a process of its own. The memory is the process's
// resident set at the end; there is nothing to repeat, so all rounds tell the
// same.
func memoryRound(rows int) func() (pair, error) {
	var once *pair
	return func() (pair, error) {
		if once != nil {
			return *once, nil
		}
		self, err := os.Executable()
		if err != nil {
			return pair{}, err
		}
		out, err := exec.Command(self, "hold", strconv.Itoa(rows)).Output()
		if err != nil {
			return pair{}, fmt.Errorf("the process with the rows: %w", err)
		}
		var resident int64
		if err := json.Unmarshal(out, &resident); err != nil {
			return pair{}, fmt.Errorf("%q: %w", out, err)
		}
		once = &pair{float64(resident) / float64(rows), 4*2*heldDim + 16}
		return *once, nil
	}
}

// hold fills four shards with rows by pushes, and prints the bytes that are
// resident then.
func hold(args []string, stdout io.Writer) error {
	if len(args) != 1 {
		return errors.New("usage: parts hold ROWS")
	}
	n, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	const shards, perPush = 4, 3000
	p := job.Parameters{V: 1, Shards: shards, List: []job.Parameter{{
		Name: "p", Sparse: true, Dim: heldDim, Init: job.Initializer{Kind: job.InitZeros}, Divisor: 1, Reduction: job.ReductionSum,
		Optimizer: job.OptimizerSettings{Type: job.OptimizerAdagrad, LearningRate: 0.1, Epsilon: 1e-10},
	}}}
	var all [shards]*pserver.Shard
	var keys [shards][]uint64
	var batch [shards]int64
	for i := range all {
		if all[i], err = pserver.NewShard(p, i, 1, pserver.ShardOptions{}); err != nil {
			return err
		}
	}
	grad := make([]float32, perPush*heldDim)
	push := func(i int) error {
		_, err := all[i].Push(1, &wire.PushData{
			Meta:   wire.Meta{Token: 1, N: batch[i]},
			Sparse: []wire.SparseRows{{Keys: keys[i], Values: grad[:len(keys[i])*heldDim]}},
		}, nil)
		batch[i]++
		keys[i] = keys[i][:0]
		return err
	}
	for k := range n {
		key := spread(k)
		i := job.ShardOf(key, shards)
		if keys[i] = append(keys[i], key); len(keys[i]) == perPush {
			if err := push(i); err != nil {
				return err
			}
		}
	}
	for i := range all {
		if err := push(i); err != nil {
			return err
		}
	}
	resident, err := residentBytes()
	if err != nil {
		return err
	}
	var rows int64
	for _, s := range all {
		rows += s.Stats().Rows // keeps the shards, too
	}
	if rows != int64(n) {
		return fmt.Errorf("%d rows instead of %d", rows, n)
	}
	return json.NewEncoder(stdout).Encode(resident)
}

// residentBytes is the resident set of this process.
func residentBytes() (int64, error) {
	f, err := os.Open("/proc/self/status")
	if err != nil {
		return 0, err
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if text, ok := strings.CutPrefix(lines.Text(), "VmRSS:"); ok {
			kib, err := strconv.ParseInt(strings.Fields(text)[0], 10, 64)
			return kib << 10, err
		}
	}
	return 0, errors.New("/proc/self/status has no VmRSS")
}
