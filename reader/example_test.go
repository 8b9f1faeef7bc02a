package reader_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"starfish/reader"
)

// A file is planned once, and its chunks are read independently of each other,
// by whoever takes them.
func Example() {
	dir, err := os.MkdirTemp("", "reader")
	if err != nil {
		panic(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	path := filepath.Join(dir, "clicks.libsvm")
	if err := os.WriteFile(path, []byte("1 3:1 7:0.5\n0 3:1\n-1 2:1 # and so on\n"), 0o600); err != nil {
		panic(err)
	}

	plan, err := reader.NewPlan([]string{path}, reader.Libsvm, 16) // bytes a chunk
	if err != nil {
		panic(err)
	}
	fmt.Println("chunks:", plan.Chunks())
	for chunk := range plan.Chunks() {
		if err := show(plan, chunk); err != nil {
			panic(err)
		}
	}
	// Output:
	// chunks: 3
	// chunk 0: label 1, keys [3 7], values [1 0.5]
	// chunk 0: label 0, keys [3], values [1]
	// chunk 1: label 0, keys [2], values [1]
}

func show(plan *reader.Plan, chunk int64) error {
	r, err := plan.Open(context.Background(), chunk, reader.Options{Batch: 64, Labels: reader.LabelBinary})
	if err != nil {
		return err
	}
	defer func() { _ = r.Close() }()
	var b reader.Batch // its memory is used again for every batch
	for {
		err := r.Next(&b)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		for i := range b.Records() {
			keys, values := b.Record(i)
			fmt.Printf("chunk %d: label %v, keys %v, values %v\n", chunk, b.Labels[i], keys, values)
		}
	}
}
