package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"

	"starfish/internal/kernel"
)

// products are products of square matrices, next to OpenBLAS through NumPy.
func products() []part {
	var parts []part
	for _, n := range []int{512, 1024} {
		parts = append(parts, part{
			name: fmt.Sprintf("sgemm %d, one thread ÷ OpenBLAS through NumPy", n), unit: "CPU-s a teraflop", target: atLeast(0.6),
			open: func(c *config) (func() (pair, error), func() error, error) { return productRounds(n, c.python) },
		})
	}
	return parts
}

// peer is a Python that multiplies matrices when it is asked to, and answers how
// long it took. It says first which library it does it with.
const peer = `
import sys, time
try:
    import numpy as np
except ImportError:
    print("no NumPy", flush=True)
    sys.exit()
n, times = int(sys.argv[1]), int(sys.argv[2])
a, b = np.random.rand(n, n).astype("f"), np.random.rand(n, n).astype("f")
c = a @ b
print("OpenBLAS" if any("openblas" in line for line in open("/proc/self/maps")) else "no OpenBLAS", flush=True)
for line in sys.stdin:
    began = time.process_time()
    for _ in range(times):
        np.matmul(a, b, out=c)
    print(time.process_time() - began, flush=True)
`

// productRounds multiplies in turn here and in Python, by processor time.
func productRounds(n int, python string) (func() (pair, error), func() error, error) {
	repeat := max(1, 1<<31/(2*n*n*n))
	cmd := exec.Command(python, "-c", peer, fmt.Sprint(n), fmt.Sprint(repeat))
	// What older versions of OpenBLAS are set to on some processors slows it down.
	cmd.Env = append(slices.DeleteFunc(os.Environ(), func(s string) bool { return strings.HasPrefix(s, "OPENBLAS_") }), "OPENBLAS_NUM_THREADS=1")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, nil, fmt.Errorf("%w: %w", errAbsent, err)
	}
	end := func() error { return errors.Join(in.Close(), cmd.Wait()) }
	lines := bufio.NewReader(out)
	if library, err := lines.ReadString('\n'); err != nil || strings.TrimSpace(library) != "OpenBLAS" {
		return nil, nil, errors.Join(fmt.Errorf("%w: %s has %s", errAbsent, python, strings.TrimSpace(library)), end())
	}
	rng := rand.New(rand.NewPCG(1, 2))
	a, b, c := kernel.Dense(n, n, make([]float32, n*n)), kernel.Dense(n, n, make([]float32, n*n)), kernel.Dense(n, n, make([]float32, n*n))
	for i := range a.Data {
		a.Data[i], b.Data[i] = rng.Float32(), rng.Float32()
	}
	var x kernel.Multiplier
	x.Mul(c, 1, a, b)
	work := 2 * float64(repeat) * float64(n) * float64(n) * float64(n) / 1e12
	return func() (p pair, err error) {
		u, err := took(times(repeat, func() error {
			clear(c.Data) // NumPy's product overwrites
			x.Mul(c, 1, a, b)
			return nil
		}))
		if err != nil {
			return p, err
		}
		var theirs float64
		if _, err := io.WriteString(in, "\n"); err != nil {
			return p, err
		}
		line, err := lines.ReadString('\n')
		if err == nil {
			_, err = fmt.Sscan(line, &theirs)
		}
		return pair{u.cpu / work, theirs / work}, err
	}, end, nil
}
