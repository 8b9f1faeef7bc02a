package main

import (
	"bufio"
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sort"
	"strings"
)

// writeData makes the records of a plan in dir and returns what the model
// `count` is to count in one pass: the lines of an export without their
// comment, but each number for one pass only.
func writeData(dir string, p Plan) (counts map[string]int, bytesTotal int, err error) {
	rng := rand.New(rand.NewPCG(p.Seed, 0xda7a))
	counts = map[string]int{"total\t0": p.Shape.Records}
	for file := range 2 {
		var b bytes.Buffer
		for range p.Shape.Records / 2 {
			writeRecord(&b, rng, p.Shape.Keys, counts)
		}
		bytesTotal += b.Len()
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("train-%d", file)), b.Bytes(), 0o644); err != nil {
			return nil, 0, err
		}
	}
	var b bytes.Buffer
	for range 200 {
		writeRecord(&b, rng, p.Shape.Keys, nil)
	}
	return counts, bytesTotal, os.WriteFile(filepath.Join(dir, "test"), b.Bytes(), 0o644)
}

// writeRecord writes one record of libsvm with keys below n: the smaller they are,
// the likelier its label is 1.
func writeRecord(b *bytes.Buffer, rng *rand.Rand, n int, counts map[string]int) {
	var text strings.Builder
	sum := 0
	for range 2 + rng.IntN(6) {
		key := rng.IntN(n)
		sum += n/2 - key
		fmt.Fprintf(&text, " %d:1", key)
		if counts != nil {
			counts[fmt.Sprintf("seen\t%d", key)]++
		}
	}
	label := 0
	if sum+rng.IntN(n)-n/2 > 0 {
		label = 1
	}
	fmt.Fprintf(b, "%d%s\n", label, text.String())
}

// specText is the spec of a plan's job.
func specText(p Plan) string {
	s := p.Shape
	staleness := ""
	if s.Staleness > 0 {
		staleness = fmt.Sprintf(", staleness: %d", s.Staleness)
	}
	return fmt.Sprintf(`job: campaign
data: {train: [data/train-0, data/train-1], test: [data/test], format: libsvm, chunk: %dB}
model: {type: %s}
optimizer: {type: adagrad, learning_rate: 0.1}
train: {mode: %s, passes: %d, batch: %d, shuffle: %v, seed: %d, window: %d%s}
shards: %d
queue: {lanes: %d}
checkpoint: {interval: %v, keep: 3}
lease_ttl: %v
run: {pservers: %d, trainers: %d}
`, s.Chunk, s.Model, s.Mode, s.Passes, s.Batch, s.Shuffle, p.Seed, s.Window, staleness, s.Shards, s.Lanes, s.Interval, leaseTTL, s.Pservers, s.Trainers)
}

// differences compares an export of `count` with what it is to be after so many
// passes; empty if it is.
func differences(file string, counts map[string]int, passes int) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer f.Close()
	left := make(map[string]int, len(counts))
	for k, n := range counts {
		left[k] = n * passes
	}
	var wrong []string
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		line := lines.Text()
		if strings.HasPrefix(line, "#") {
			continue
		}
		at := strings.LastIndexByte(line, '\t')
		key := line[:max(at, 0)]
		if want := fmt.Sprintf("%s\t%d", key, left[key]); line != want {
			wrong = append(wrong, fmt.Sprintf("%q instead of %q", line, want))
		}
		delete(left, key)
	}
	for key, n := range left {
		wrong = append(wrong, fmt.Sprintf("%s is missing, not %d", key, n))
	}
	sort.Strings(wrong)
	return strings.Join(wrong[:min(len(wrong), 10)], "; "), lines.Err()
}
