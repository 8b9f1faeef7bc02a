package main

import (
	"archive/tar"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// assemble makes the image of its layers: who runs in it, where, and what it says
// of itself. It has no entry point: one image holds several programs, and who
// starts it names one.
func assemble(o options, first program, layers []v1.Layer) (v1.Image, error) {
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	var adds []mutate.Addendum
	for _, l := range layers {
		adds = append(adds, mutate.Addendum{Layer: l, MediaType: types.OCILayer, History: v1.History{
			Created: v1.Time{Time: o.created}, CreatedBy: "starfish deploy/image",
		}})
	}
	img, err := mutate.Append(img, adds...)
	if err != nil {
		return nil, err
	}
	labels := map[string]string{
		"org.opencontainers.image.title":       "starfish",
		"org.opencontainers.image.description": "Training with parameter servers, without a master: pserver, trainer and the operator's tool",
		"org.opencontainers.image.licenses":    "Apache-2.0",
		"org.opencontainers.image.version":     o.version,
		"org.opencontainers.image.created":     o.created.Format(time.RFC3339),
	}
	if o.revision != "" {
		labels["org.opencontainers.image.revision"] = o.revision
	}
	maps.Copy(labels, o.labels)
	config, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = first.setting("GOOS"), first.setting("GOARCH")
	config.Created = v1.Time{Time: o.created}
	config.Config = v1.Config{
		User: fmt.Sprintf("%d:%[1]d", nobody), WorkingDir: "/", Env: []string{"PATH=/" + binaries},
		Cmd: strings.Fields(o.command), Labels: labels,
	}
	if img, err = mutate.ConfigFile(img, config); err != nil {
		return nil, err
	}
	return mutate.Annotations(img, labels).(v1.Image), nil
}

// blob is one file of the archive's store of contents.
type blob struct {
	digest v1.Hash
	open   func() (io.ReadCloser, error)
	size   int64
}

func (b blob) path() string { return "blobs/" + b.digest.Algorithm + "/" + b.digest.Hex }

func bytesOf(raw []byte, err error, digest func() (v1.Hash, error)) (blob, error) {
	if err != nil {
		return blob{}, err
	}
	d, err := digest()
	open := func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(string(raw))), nil }
	return blob{digest: d, open: open, size: int64(len(raw))}, err
}

// contents are the blobs of an image: its manifest, its configuration, its layers.
func contents(img v1.Image) ([]blob, error) {
	raw, err := img.RawManifest()
	manifest, err := bytesOf(raw, err, img.Digest)
	if err != nil {
		return nil, err
	}
	raw, err = img.RawConfigFile()
	config, err := bytesOf(raw, err, img.ConfigName)
	if err != nil {
		return nil, err
	}
	all := []blob{manifest, config}
	layers, err := img.Layers()
	if err != nil {
		return nil, err
	}
	for _, l := range layers {
		b := blob{open: l.Compressed}
		if b.digest, err = l.Digest(); err != nil {
			return nil, err
		}
		if b.size, err = l.Size(); err != nil {
			return nil, err
		}
		all = append(all, b)
	}
	return all, nil
}

// writeArchive writes an image under its names as one file that appears whole or
// not at all: an OCI layout in a tar, with the `manifest.json` from which `docker
// load` of every age reads the same blobs. It returns the manifest's digest and
// the size of the blobs.
func writeArchive(file string, refs []string, img v1.Image) (v1.Hash, int64, error) {
	blobs, err := contents(img)
	if err != nil {
		return v1.Hash{}, 0, err
	}
	config, err := img.ConfigFile()
	if err != nil {
		return v1.Hash{}, 0, err
	}
	index := v1.IndexManifest{SchemaVersion: 2, MediaType: types.OCIImageIndex}
	for _, ref := range refs {
		_, tag, ok := strings.Cut(ref[strings.LastIndexByte(ref, '/')+1:], ":")
		if !ok {
			return v1.Hash{}, 0, fmt.Errorf("image %s: a tag is missing", ref)
		}
		index.Manifests = append(index.Manifests, v1.Descriptor{
			MediaType: types.OCIManifestSchema1, Size: blobs[0].size, Digest: blobs[0].digest, Platform: config.Platform(),
			Annotations: map[string]string{"io.containerd.image.name": ref, "org.opencontainers.image.ref.name": tag},
		})
	}
	legacy := struct {
		Config   string
		RepoTags []string
		Layers   []string
	}{Config: blobs[1].path(), RepoTags: refs}
	for _, b := range blobs[2:] {
		legacy.Layers = append(legacy.Layers, b.path())
	}

	f, err := os.CreateTemp(filepath.Dir(file), filepath.Base(file)+".tmp")
	if err != nil {
		return v1.Hash{}, 0, err
	}
	defer func() { _ = os.Remove(f.Name()) }() // it has another name by then, or is of no use
	t := newArchive(f)
	t.json("oci-layout", map[string]string{"imageLayoutVersion": "1.0.0"})
	t.json("index.json", index)
	t.json("manifest.json", []any{legacy})
	var size int64
	for _, b := range blobs {
		t.blob(b)
		size += b.size
	}
	if err := t.close(); err != nil {
		return v1.Hash{}, 0, fmt.Errorf("write %s: %w", file, err)
	}
	if err := f.Chmod(0o644); err != nil {
		return v1.Hash{}, 0, err
	}
	if err := f.Close(); err != nil {
		return v1.Hash{}, 0, err
	}
	return blobs[0].digest, size, os.Rename(f.Name(), file)
}

// archive writes a tar; its first error stays.
type archive struct {
	tar *tar.Writer
	err error
}

func newArchive(w io.Writer) *archive { return &archive{tar: tar.NewWriter(w)} }

func (a *archive) add(name string, size int64, r io.Reader) {
	if a.err == nil {
		a.err = a.tar.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: size, ModTime: time.Unix(0, 0)})
	}
	if a.err == nil {
		_, a.err = io.Copy(a.tar, r)
	}
}

func (a *archive) json(name string, v any) {
	b, err := json.Marshal(v)
	if err != nil && a.err == nil {
		a.err = err
	}
	a.add(name, int64(len(b)), strings.NewReader(string(b)))
}

func (a *archive) blob(b blob) {
	r, err := b.open()
	if err != nil {
		a.err = err
		return
	}
	defer func() { _ = r.Close() }() // it was read in memory
	a.add(b.path(), b.size, r)
}

func (a *archive) close() error {
	if a.err != nil {
		return a.err
	}
	return a.tar.Close()
}
