package etcd

import (
	"context"
	"fmt"
	"time"
)

// The oldest etcd that this package is tested with.
const (
	oldestMajor = 3
	oldestMinor = 6
)

// versionPatience bounds the question for the version, which may fail: nothing
// depends on it.
const versionPatience = 2 * time.Second

// warnOfVersion warns if the first endpoint that answers is too old an etcd.
func (s *Store) warnOfVersion(ctx context.Context) {
	log := s.history.log
	if log == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, versionPatience)
	defer cancel()
	for _, endpoint := range s.client.Endpoints() {
		status, err := s.client.Status(ctx, endpoint)
		if err != nil {
			continue
		}
		if tooOld(status.Version) {
			log.WithField("version", status.Version).WithField("endpoint", endpoint).
				WithField("oldest", fmt.Sprintf("%d.%d", oldestMajor, oldestMinor)).
				Warn("this version of etcd is not supported")
		}
		return
	}
}

// tooOld tells whether a version is known and too old.
func tooOld(version string) bool {
	var major, minor int
	if n, _ := fmt.Sscanf(version, "%d.%d", &major, &minor); n != 2 {
		return false
	}
	return major < oldestMajor || major == oldestMajor && minor < oldestMinor
}
