package etcd

import (
	"fmt"
	"sync"

	"github.com/sirupsen/logrus"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"starfish/internal/store"
)

// history notices that the store went back in time. Once it has, it stays
// broken.
type history struct {
	log logrus.FieldLogger

	mu      sync.Mutex
	cluster uint64
	seen    int64 // the largest revision of any linearizable answer
	err     error
}

// broken is store.ErrHistory once the history went back.
func (h *history) broken() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.err
}

// floor is the revision below which no answer may lie whose request is sent
// from now on.
func (h *history) floor() int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.seen
}

// answered checks the header of a linearizable answer to a request that was
// sent when floor was the floor.
func (h *history) answered(header *pb.ResponseHeader, floor int64) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.compareCluster(header)
	if h.err == nil && header.GetRevision() < floor {
		h.fail(header, fmt.Sprintf("revision %d after %d", header.GetRevision(), floor))
	}
	if h.err == nil {
		h.seen = max(h.seen, header.GetRevision())
	}
	return h.err
}

// identified checks the header of an answer that need not be linearizable: a
// member that lags behind may give it, but not another cluster.
func (h *history) identified(header *pb.ResponseHeader) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.compareCluster(header)
	return h.err
}

// compareCluster notes the first cluster that answers and compares the others.
func (h *history) compareCluster(header *pb.ResponseHeader) {
	switch id := header.GetClusterId(); {
	case id == 0 || h.err != nil:
	case h.cluster == 0:
		h.cluster = id
	case h.cluster != id:
		h.fail(header, fmt.Sprintf("cluster %x after %x", id, h.cluster))
	}
}

func (h *history) fail(header *pb.ResponseHeader, what string) {
	h.err = fmt.Errorf("%w (%s)", store.ErrHistory, what)
	if h.log != nil {
		h.log.WithFields(logrus.Fields{
			"cluster": fmt.Sprintf("%x", header.GetClusterId()), "member": fmt.Sprintf("%x", header.GetMemberId()),
			"revision": header.GetRevision(), "seen": h.seen,
		}).Error("etcd's history went backwards")
	}
}
