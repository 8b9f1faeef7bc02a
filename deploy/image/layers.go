package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Where things are in an image.
const (
	binaries     = "usr/local/bin"
	certificates = "etc/ssl/certs/ca-certificates.crt"
	materials    = "usr/share/starfish/sbom.spdx.json"
)

// tree writes files in the form of a layer: owned by root, of one time, each
// directory before what is in it.
type tree struct {
	tar  *tar.Writer
	buf  bytes.Buffer
	time time.Time
	dirs map[string]bool
}

func newTree(at time.Time) *tree {
	t := &tree{time: at, dirs: map[string]bool{".": true}}
	t.tar = tar.NewWriter(&t.buf)
	return t
}

func (t *tree) dir(name string, mode int64) error {
	if t.dirs[name] {
		return nil
	}
	if err := t.dir(path.Dir(name), 0o755); err != nil {
		return err
	}
	t.dirs[name] = true
	return t.tar.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: mode, ModTime: t.time})
}

func (t *tree) file(name string, mode int64, b []byte) error {
	if err := t.dir(path.Dir(name), 0o755); err != nil {
		return err
	}
	if err := t.tar.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode, Size: int64(len(b)), ModTime: t.time}); err != nil {
		return err
	}
	_, err := t.tar.Write(b)
	return err
}

// copy adds a file, or a directory with all that is in it, in the order of names.
func (t *tree) copy(from, to string) error {
	return filepath.WalkDir(from, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, file)
		if err != nil {
			return err
		}
		name := path.Join(to, filepath.ToSlash(rel))
		switch {
		case d.IsDir():
			return t.dir(name, 0o755)
		case !d.Type().IsRegular():
			return fmt.Errorf("%s: neither a file nor a directory", file)
		}
		b, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		return t.file(name, 0o644, b)
	})
}

// layer is the finished tree.
func (t *tree) layer() (v1.Layer, error) {
	if err := t.tar.Close(); err != nil {
		return nil, err
	}
	b := t.buf.Bytes()
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b)), nil }
	return tarball.LayerFromOpener(open, tarball.WithCompressionLevel(gzip.BestCompression), tarball.WithMediaType(types.OCILayer))
}

// layers are the programs with what they need, and the data, if there are any, in
// a layer of their own.
func (o options) layers(programs []program, sbom []byte) ([]v1.Layer, error) {
	t := newTree(o.created)
	users := fmt.Sprintf("root:x:0:0:root:/:/sbin/nologin\nnonroot:x:%d:%[1]d:nonroot:/:/sbin/nologin\n", nobody)
	steps := []func() error{
		func() error { return t.dir("tmp", 0o1777) },
		func() error { return t.file("etc/passwd", 0o644, []byte(users)) },
		func() error {
			return t.file("etc/group", 0o644, fmt.Appendf(nil, "root:x:0:\nnonroot:x:%d:\n", nobody))
		},
		func() error { return t.file(materials, 0o644, sbom) },
	}
	if o.certificates != "" {
		pem, err := os.ReadFile(o.certificates)
		if err != nil {
			return nil, err
		}
		steps = append(steps, func() error { return t.file(certificates, 0o644, pem) })
	}
	for _, p := range programs {
		steps = append(steps, func() error { return t.file(path.Join(binaries, p.name), 0o755, p.bytes) })
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return nil, err
		}
	}
	first, err := t.layer()
	if err != nil || len(o.data) == 0 {
		return []v1.Layer{first}, err
	}
	t = newTree(o.created)
	for _, arg := range o.data {
		from, to, _ := strings.Cut(arg, "=")
		if err := t.copy(from, strings.TrimPrefix(path.Clean("/"+to), "/")); err != nil {
			return nil, err
		}
	}
	second, err := t.layer()
	return []v1.Layer{first, second}, err
}
