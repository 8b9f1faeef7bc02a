package client

import (
	"context"

	"starfish/internal/membership"
)

// Session moves pushes and pulls under one view.
type Session struct{ view membership.View }

// View is the view that the session works under.
func (s *Session) View() membership.View { return s.view }

// Exchange pushes one batch and pulls another (nil: not), in this order at
// every shard. It returns before the servers have answered.
func (s *Session) Exchange(ctx context.Context, push *Batch, meta PushMeta, pull *Batch) (*Call, error) {
	return nil, nil
}

// Progress asks every shard how far it is with chunks: one entry for each
// chunk, with one for each shard.
func (s *Session) Progress(ctx context.Context, chunks []Chunk) ([][]Progress, error) {
	return nil, nil
}

// Done is closed when the session is broken or closed; Err says why.
func (s *Session) Done() <-chan struct{} { return nil }

// Err is the fault that broke the session; nil while there is none.
func (s *Session) Err() error { return nil }

// Abort breaks the session, as a fault of the network would.
func (s *Session) Abort(err error) {}

// Close ends the session and waits until nothing of it touches a batch.
func (s *Session) Close() {}

// Call is an exchange under way.
type Call struct{}

// Wait waits for all answers: nil, *FaultError or the context's cause.
func (c *Call) Wait(ctx context.Context) error { return nil }

// Answers has what each shard said to the push, by shard.
func (c *Call) Answers() []Answer { return nil }
