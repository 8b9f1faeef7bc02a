package etcdqueue

// Dial opens the queue below prefix in an etcd cluster, for programs that have
// no other use for starfish; Close closes the connection too. Config.Store is
// ignored.
func Dial(endpoints []string, prefix string, c Config) (*Queue, error) { return New(c) }
