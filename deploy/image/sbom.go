package main

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"time"
)

// The parts of SPDX 2.3 that a bill of materials of programs needs
// (https://spdx.github.io/spdx-spec/v2.3/).
type document struct {
	SPDXVersion       string         `json:"spdxVersion"`
	DataLicense       string         `json:"dataLicense"`
	SPDXID            string         `json:"SPDXID"`
	Name              string         `json:"name"`
	DocumentNamespace string         `json:"documentNamespace"`
	CreationInfo      creation       `json:"creationInfo"`
	Packages          []spdxPackage  `json:"packages"`
	Files             []spdxFile     `json:"files"`
	Relationships     []relationship `json:"relationships"`
}

type creation struct {
	Created  string   `json:"created"`
	Creators []string `json:"creators"`
}

type spdxPackage struct {
	SPDXID           string        `json:"SPDXID"`
	Name             string        `json:"name"`
	VersionInfo      string        `json:"versionInfo"`
	DownloadLocation string        `json:"downloadLocation"`
	FilesAnalyzed    bool          `json:"filesAnalyzed"`
	LicenseConcluded string        `json:"licenseConcluded"`
	LicenseDeclared  string        `json:"licenseDeclared"`
	CopyrightText    string        `json:"copyrightText"`
	SourceInfo       string        `json:"sourceInfo,omitempty"`
	ExternalRefs     []externalRef `json:"externalRefs,omitempty"`
}

type externalRef struct {
	ReferenceCategory string `json:"referenceCategory"`
	ReferenceType     string `json:"referenceType"`
	ReferenceLocator  string `json:"referenceLocator"`
}

type spdxFile struct {
	SPDXID        string     `json:"SPDXID"`
	FileName      string     `json:"fileName"`
	FileTypes     []string   `json:"fileTypes"`
	Checksums     []checksum `json:"checksums"`
	LicenseInfo   string     `json:"licenseConcluded"`
	CopyrightText string     `json:"copyrightText"`
}

type checksum struct {
	Algorithm string `json:"algorithm"`
	Value     string `json:"checksumValue"`
}

type relationship struct {
	Element string `json:"spdxElementId"`
	Type    string `json:"relationshipType"`
	Related string `json:"relatedSpdxElement"`
}

const (
	rootID  = "SPDXRef-starfish"
	unknown = "NOASSERTION"
)

// billOfMaterials lists, as SPDX 2.3 in JSON, each program with its digest and
// each module in it with version and the hash by which go.sum knows it: what `go
// version -m` prints. It says nothing that the programs do not say themselves, and
// is the same for the same programs.
func billOfMaterials(o options, programs []program) ([]byte, error) {
	d := document{
		SPDXVersion: "SPDX-2.3", DataLicense: "CC0-1.0", SPDXID: "SPDXRef-DOCUMENT", Name: "starfish-" + o.version,
		CreationInfo:  creation{Created: o.created.Format(time.RFC3339), Creators: []string{"Tool: starfish-deploy-image"}},
		Packages:      []spdxPackage{goPackage(rootID, "starfish", o.version, "", "")},
		Relationships: []relationship{{"SPDXRef-DOCUMENT", "DESCRIBES", rootID}},
	}
	d.Packages[0].LicenseDeclared, d.Packages[0].SourceInfo = "Apache-2.0", "commit "+o.revision
	all := sha256.New()
	modules := map[string]bool{}
	for _, p := range programs {
		id := "SPDXRef-file-" + p.name
		d.Files = append(d.Files, spdxFile{
			SPDXID: id, FileName: "./" + binaries + "/" + p.name, FileTypes: []string{"BINARY"},
			Checksums: []checksum{{"SHA256", p.sha256}}, LicenseInfo: unknown, CopyrightText: unknown,
		})
		_, _ = fmt.Fprintln(all, p.sha256) // a hash takes everything
		d.Relationships = append(d.Relationships, relationship{rootID, "CONTAINS", id})
		for _, m := range linked(p.info) {
			mid := "SPDXRef-module-" + idOf(m.Path) + "-" + idOf(m.Version)
			if !modules[mid] {
				modules[mid] = true
				d.Packages = append(d.Packages, goPackage(mid, m.Path, m.Version, m.Sum, "pkg:golang/"+m.Path+"@"+m.Version))
			}
			d.Relationships = append(d.Relationships, relationship{id, "DEPENDS_ON", mid})
		}
	}
	slices.SortFunc(d.Packages[1:], func(a, b spdxPackage) int { return strings.Compare(a.SPDXID, b.SPDXID) })
	d.DocumentNamespace = fmt.Sprintf("urn:starfish:sbom:sha256:%x", all.Sum(nil))
	b, err := json.MarshalIndent(d, "", " ")
	return append(b, '\n'), err
}

// linked are the modules in a program, replacements in the place of what they
// replace, and the standard library.
func linked(info *debug.BuildInfo) []debug.Module {
	all := []debug.Module{{Path: "stdlib", Version: strings.TrimPrefix(info.GoVersion, "go")}}
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		all = append(all, *m)
	}
	return all
}

func goPackage(id, name, version, sum, purl string) spdxPackage {
	p := spdxPackage{
		SPDXID: id, Name: name, VersionInfo: version, DownloadLocation: unknown,
		LicenseConcluded: unknown, LicenseDeclared: unknown, CopyrightText: unknown,
	}
	if sum != "" {
		p.SourceInfo = "go.sum " + sum
	}
	if purl != "" {
		p.ExternalRefs = []externalRef{{"PACKAGE-MANAGER", "purl", purl}}
	}
	return p
}

// idOf is a text in the letters that an SPDX identifier may have: another one is
// its number, so that different texts stay different.
func idOf(text string) string {
	var b strings.Builder
	for _, r := range text {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '.', r == '-':
			b.WriteRune(r)
		case r == '/':
			b.WriteString("--")
		default:
			fmt.Fprintf(&b, "-%x-", r)
		}
	}
	return b.String()
}
