// Command image packs static programs into container images: OCI archives, made
// without an engine, a registry or a base image, the same bit for bit whenever the
// same programs are packed.
//
//	image -version 1.2.0 -ref localhost/starfish:1.2.0 -o starfish.tar -sbom starfish.spdx.json bin/pserver bin/trainer
//
// An argument is a program, or FROM=TO for a file or directory that is put at TO;
// programs go to /usr/local/bin. The archive is what `ctr images import`, `kind
// load image-archive`, `podman load`, `docker load` and `skopeo copy oci-archive:`
// read.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// nobody is the user and the group that programs run as.
const nobody = 65532

// options is what the command is told.
type options struct {
	out     string
	sbom    string
	refs    []string
	version string
	// revision is the commit that the programs were built from.
	revision string
	created  time.Time
	// command is what runs if whoever starts the image names nothing.
	command string
	// certificates is a file with authorities (PEM) for the image's system store.
	certificates string
	// labels replace those that the image would have, or come beside them.
	labels   map[string]string
	programs []string
	data     []string // FROM=TO
}

func main() {
	o, err := parse(os.Args[1:], os.Getenv("SOURCE_DATE_EPOCH"))
	if err == nil {
		err = o.run(os.Stdout)
	}
	switch {
	case errors.Is(err, flag.ErrHelp):
		os.Exit(2)
	case err != nil:
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

// parse reads the command line; epoch is the time of all files and of the image in
// seconds since 1970, empty for 0.
func parse(args []string, epoch string) (options, error) {
	o := options{labels: map[string]string{}}
	fs := flag.NewFlagSet("image", flag.ContinueOnError)
	fs.StringVar(&o.out, "o", "", "archive to write")
	fs.StringVar(&o.sbom, "sbom", "", "also write the bill of materials (SPDX 2.3, JSON) to this file")
	fs.StringVar(&o.version, "version", "unknown", "version of the programs")
	fs.StringVar(&o.revision, "revision", "", "commit that they were built from")
	fs.StringVar(&o.command, "cmd", "", "what runs by default (default: the first program)")
	fs.StringVar(&o.certificates, "certificates", "", "file with authorities (PEM) that the programs trust")
	fs.Func("ref", "name of the image, HOST/NAME:TAG; may be repeated", func(s string) error {
		o.refs = append(o.refs, s)
		return nil
	})
	fs.Func("label", "NAME=TEXT: a label of the image; may be repeated", func(s string) error {
		name, text, ok := strings.Cut(s, "=")
		if o.labels[name] = text; !ok {
			return errors.New("it has the form NAME=TEXT")
		}
		return nil
	})
	if err := fs.Parse(args); err != nil {
		return o, err
	}
	for _, a := range fs.Args() {
		if strings.Contains(a, "=") {
			o.data = append(o.data, a)
		} else {
			o.programs = append(o.programs, a)
		}
	}
	if o.out == "" || len(o.refs) == 0 || len(o.programs) == 0 {
		return o, errors.New("-o, -ref and at least one program are needed")
	}
	if o.command == "" {
		o.command = filepath.Base(o.programs[0])
	}
	seconds := int64(0)
	if epoch != "" {
		var err error
		if seconds, err = strconv.ParseInt(epoch, 10, 64); err != nil {
			return o, fmt.Errorf("SOURCE_DATE_EPOCH: %w", err)
		}
	}
	o.created = time.Unix(seconds, 0).UTC()
	return o, nil
}

// run makes the image and prints its names, its digest and its size.
func (o options) run(stdout io.Writer) error {
	programs, err := readPrograms(o.programs)
	if err != nil {
		return err
	}
	sbom, err := billOfMaterials(o, programs)
	if err != nil {
		return err
	}
	layers, err := o.layers(programs, sbom)
	if err != nil {
		return err
	}
	img, err := assemble(o, programs[0], layers)
	if err != nil {
		return err
	}
	if o.sbom != "" {
		if err := os.WriteFile(o.sbom, sbom, 0o644); err != nil {
			return err
		}
	}
	digest, size, err := writeArchive(o.out, o.refs, img)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(stdout, "%s  %s@%s  %.1f MB\n", o.out, strings.Join(o.refs, " "), digest, float64(size)/1e6)
	return err
}
