package fake

import (
	"fmt"

	"starfish/internal/store"
)

// check refuses what etcd refuses whatever the state of the store is. Both
// sides are checked, also the one that will not be taken.
func check(t store.Txn) error {
	if n := max(len(t.If), len(t.Then), len(t.Else)); n > store.MaxOps {
		return fmt.Errorf("%w: %d operations, more than %d", store.ErrInvalid, n, store.MaxOps)
	}
	size := 0
	for _, c := range t.If {
		if c.Key == "" {
			return fmt.Errorf("%w: empty key", store.ErrInvalid)
		}
		size += len(c.Key)
	}
	for _, side := range [][]store.Op{t.Then, t.Else} {
		n, err := checkSide(side)
		if err != nil {
			return err
		}
		size += n
	}
	if size > maxRequest {
		return fmt.Errorf("%w: request of %d bytes", store.ErrInvalid, size)
	}
	return nil
}

func checkSide(ops []store.Op) (size int, err error) {
	written := map[string]bool{}
	for _, o := range ops {
		if o.Key == "" {
			return 0, fmt.Errorf("%w: empty key", store.ErrInvalid)
		}
		size += len(o.Key) + len(o.End) + len(o.Value)
		if o.Kind != store.KindPut {
			continue
		}
		if written[o.Key] || deleted(ops, o.Key) {
			return 0, fmt.Errorf("%w: %s is written twice in one transaction", store.ErrInvalid, o.Key)
		}
		written[o.Key] = true
	}
	return size, nil
}

func deleted(ops []store.Op, key string) bool {
	for _, o := range ops {
		if o.Kind == store.KindDelete && within(key, o.Key, o.End) {
			return true
		}
	}
	return false
}
