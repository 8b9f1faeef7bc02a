package main

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/stretchr/testify/require"
)

// small is a static program, built once.
var small = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "starfish-image-test")
	if err != nil {
		return "", err
	}
	c := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", filepath.Join(dir, "small"), "starfish/deploy/e2e/pause")
	c.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := c.CombinedOutput(); err != nil {
		return dir, fmt.Errorf("%w: %s", err, out)
	}
	return dir, nil
})

func TestMain(m *testing.M) {
	code := m.Run()
	if dir, _ := small(); dir != "" {
		_ = os.RemoveAll(dir)
	}
	os.Exit(code)
}

const ref = "localhost/starfish:test"

// build packs the small program with some data.
func build(t *testing.T, more ...string) (archive, sbom string) {
	t.Helper()
	dir, err := small()
	require.NoError(t, err)
	data := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(data, "b/c"), 0o700))
	for _, f := range []string{"z", "a", "b/c/d"} {
		require.NoError(t, os.WriteFile(filepath.Join(data, f), []byte(f), 0o600))
	}
	out := t.TempDir()
	archive, sbom = filepath.Join(out, "image.tar"), filepath.Join(out, "sbom.json")
	args := append([]string{"-o", archive, "-sbom", sbom, "-ref", ref, "-ref", "localhost/starfish:other", "-version", "1.2.3",
		"-revision", "abc", "-label", "org.opencontainers.image.source=here"}, more...)
	o, err := parse(append(args, filepath.Join(dir, "small"), data+"=/examples/some"), "1700000000")
	require.NoError(t, err)
	var says strings.Builder
	require.NoError(t, o.run(&says))
	require.Contains(t, says.String(), ref)
	return archive, sbom
}

// Two builds are the same, whenever and from wherever they are made.
func TestSameBits(t *testing.T) {
	t.Parallel()
	a, aSBOM := build(t)
	b, bSBOM := build(t)
	require.NotEqual(t, a, b)
	for _, pair := range [][2]string{{a, b}, {aSBOM, bSBOM}} {
		x, err := os.ReadFile(pair[0])
		require.NoError(t, err)
		y, err := os.ReadFile(pair[1])
		require.NoError(t, err)
		require.True(t, bytes.Equal(x, y), filepath.Base(pair[0]))
	}
}

// entries are the files of an image, by name; a directory comes before what is in
// it.
func entries(t *testing.T, img v1.Image) map[string]tar.Header {
	t.Helper()
	all := map[string]tar.Header{}
	layers, err := img.Layers()
	require.NoError(t, err)
	for _, l := range layers {
		dirs := map[string]bool{".": true}
		r, err := l.Uncompressed()
		require.NoError(t, err)
		for tr := tar.NewReader(r); ; {
			h, err := tr.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			require.NoError(t, err)
			at := path.Clean(h.Name)
			require.True(t, dirs[path.Dir(at)], "%s comes before its directory", at)
			if h.Typeflag == tar.TypeDir {
				dirs[at] = true
			}
			all[at] = *h
		}
		require.NoError(t, r.Close())
	}
	return all
}

// What is packed is what another reader of archives finds: programs that anybody
// may run and nobody may change, a user that is not root, and who it is.
func TestArchive(t *testing.T) {
	t.Parallel()
	ca := filepath.Join(t.TempDir(), "ca.pem")
	require.NoError(t, os.WriteFile(ca, []byte("pem"), 0o600))
	archive, _ := build(t, "-certificates", ca)
	for _, r := range []string{ref, "localhost/starfish:other"} {
		tag, err := name.NewTag(r)
		require.NoError(t, err)
		img, err := tarball.ImageFromPath(archive, &tag)
		require.NoError(t, err)
		config, err := img.ConfigFile()
		require.NoError(t, err)
		require.Equal(t, "65532:65532", config.Config.User)
		require.Empty(t, config.Config.Entrypoint)
		require.Equal(t, []string{"small"}, config.Config.Cmd)
		require.Equal(t, "linux", config.OS)
		require.NotEmpty(t, config.Architecture)
		require.Equal(t, "1.2.3", config.Config.Labels["org.opencontainers.image.version"])
		require.Equal(t, "abc", config.Config.Labels["org.opencontainers.image.revision"])
		require.Equal(t, "here", config.Config.Labels["org.opencontainers.image.source"])
		require.Equal(t, "2023-11-14T22:13:20Z", config.Config.Labels["org.opencontainers.image.created"])
		all := entries(t, img)
		for at, mode := range map[string]int64{
			"tmp": 0o1777, "usr/local/bin/small": 0o755, "etc/passwd": 0o644, "usr/share/starfish/sbom.spdx.json": 0o644,
			"etc/ssl/certs/ca-certificates.crt": 0o644, "examples/some": 0o755, "examples/some/a": 0o644, "examples/some/b/c/d": 0o644,
		} {
			require.Contains(t, all, at)
			require.Equal(t, mode, all[at].Mode, at)
		}
		for at, h := range all {
			require.Zero(t, h.Uid, at)
			require.Equal(t, int64(1700000000), h.ModTime.Unix(), at)
		}
	}
	checkLayout(t, archive)
}

// checkLayout reads the archive as an OCI layout: every content is what its digest
// says.
func checkLayout(t *testing.T, archive string) {
	t.Helper()
	f, err := os.Open(archive)
	require.NoError(t, err)
	defer f.Close()
	files := map[string][]byte{}
	for tr := tar.NewReader(f); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		b, err := io.ReadAll(tr)
		require.NoError(t, err)
		files[h.Name] = b
	}
	require.JSONEq(t, `{"imageLayoutVersion":"1.0.0"}`, string(files["oci-layout"]))
	var index v1.IndexManifest
	require.NoError(t, json.Unmarshal(files["index.json"], &index))
	require.Len(t, index.Manifests, 2)
	blobs := 0
	for at, b := range files {
		if hex, ok := strings.CutPrefix(at, "blobs/sha256/"); ok {
			blobs++
			require.Equal(t, hex, fmt.Sprintf("%x", sha256.Sum256(b)))
		}
	}
	require.Equal(t, 4, blobs, "manifest, configuration, two layers")
	for i, r := range []string{ref, "localhost/starfish:other"} {
		d := index.Manifests[i]
		require.Equal(t, r, d.Annotations["io.containerd.image.name"])
		require.Equal(t, "linux", d.Platform.OS)
		b := files["blobs/sha256/"+d.Digest.Hex]
		require.Len(t, b, int(d.Size))
		m, err := v1.ParseManifest(bytes.NewReader(b))
		require.NoError(t, err)
		require.Equal(t, "1.2.3", m.Annotations["org.opencontainers.image.version"])
		require.Contains(t, files, "blobs/sha256/"+m.Config.Digest.Hex)
		for _, l := range m.Layers {
			require.Contains(t, files, "blobs/sha256/"+l.Digest.Hex)
		}
	}
}

// The bill of materials names each program with its digest, and what is in it.
func TestBillOfMaterials(t *testing.T) {
	t.Parallel()
	_, sbom := build(t)
	b, err := os.ReadFile(sbom)
	require.NoError(t, err)
	var d document
	require.NoError(t, json.Unmarshal(b, &d))
	require.Equal(t, "SPDX-2.3", d.SPDXVersion)
	dir, err := small()
	require.NoError(t, err)
	p, err := readProgram(filepath.Join(dir, "small"))
	require.NoError(t, err)
	require.Len(t, d.Files, 1)
	require.Equal(t, []checksum{{"SHA256", fmt.Sprintf("%x", sha256.Sum256(p.bytes))}}, d.Files[0].Checksums)
	ids := map[string]bool{d.SPDXID: true, d.Files[0].SPDXID: true}
	for _, p := range d.Packages {
		require.False(t, ids[p.SPDXID], p.SPDXID)
		ids[p.SPDXID] = true
	}
	for _, r := range d.Relationships {
		require.True(t, ids[r.Element] && ids[r.Related], "%+v", r)
	}
	require.True(t, ids["SPDXRef-module-stdlib-"+strings.TrimPrefix(p.info.GoVersion, "go")])
}

// Of modules the list has those that are in a program, in the place of which they
// are, once each, and no two that differ as one.
func TestModules(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	require.NoError(t, err)
	b, err := os.ReadFile(self)
	require.NoError(t, err)
	p := program{name: "self", bytes: b}
	if p.info, err = readInfo(b); err != nil || len(p.info.Deps) == 0 {
		t.Skip("the test's own program does not list its modules")
	}
	twice := p
	twice.name = "again"
	raw, err := billOfMaterials(options{version: "1"}, []program{p, twice})
	require.NoError(t, err)
	for _, m := range linked(p.info)[1:] {
		locator := "pkg:golang/" + m.Path + "@" + m.Version
		require.Equal(t, 1, bytes.Count(raw, []byte(`"`+locator+`"`)), locator)
		require.Contains(t, string(raw), m.Sum)
	}
	require.NotEqual(t, idOf("a_b"), idOf("a-b"))
	require.NotEqual(t, idOf("a/b"), idOf("a.b"))
}

func TestRefused(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{}, {"-o", "x"}, {"-o", "x", "-ref", ref}, {"-o", "x", "-ref", ref, "a=b"}, {"-label", "x"}} {
		_, err := parse(args, "")
		require.Error(t, err, "%v", args)
	}
	_, err := parse([]string{"-o", "x", "-ref", ref, "p"}, "yesterday")
	require.ErrorContains(t, err, "SOURCE_DATE_EPOCH")
	_, err = readPrograms([]string{"/bin/sh"})
	require.ErrorContains(t, err, "not a program of Go")
	dir, err := small()
	require.NoError(t, err)
	out := filepath.Join(t.TempDir(), "x.tar")
	o, err := parse([]string{"-o", out, "-ref", "localhost/starfish", filepath.Join(dir, "small")}, "")
	require.NoError(t, err)
	require.ErrorContains(t, o.run(io.Discard), "a tag is missing")
	require.NoFileExists(t, out)
}
