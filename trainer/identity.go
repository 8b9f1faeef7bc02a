package trainer

import (
	"context"
	"sync/atomic"

	"starfish/internal/transport"
	"starfish/job"
	"starfish/pserver/pb"
)

// identity answers the question who is at this address. A newcomer of the same
// name asks it before it takes the name over.
type identity struct {
	pb.UnimplementedPServerServer
	address     string
	name        string
	version     string
	job         job.Job
	incarnation atomic.Value // string
	server      *transport.Server
	served      chan struct{}
}

func listenIdentity(cfg Config, j job.Job) (*identity, error) {
	l, err := cfg.Network.Listen(cfg.Listen)
	if err != nil {
		return nil, err
	}
	id := &identity{
		address: transport.Advertised(cfg.Advertise, l.Addr()), name: cfg.Name, version: cfg.Version, job: j,
		server: transport.NewServer(nil), served: make(chan struct{}),
	}
	id.incarnation.Store("")
	pb.RegisterPServerServer(id.server, id)
	go func() {
		defer close(id.served)
		_ = id.server.Serve(l) // it ends when close stops the server
	}()
	return id, nil
}

func (id *identity) set(incarnation string) { id.incarnation.Store(incarnation) }

func (id *identity) close() {
	id.server.Stop()
	<-id.served
}

// Identify says who answers here.
func (id *identity) Identify(context.Context, *pb.IdentifyRequest) (*pb.IdentifyResponse, error) {
	return &pb.IdentifyResponse{
		Incarnation: id.incarnation.Load().(string), Job: id.job.UUID[:], Name: id.name, Version: id.version,
	}, nil
}
