package oci

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// program builds a static program for a platform.
func program(t *testing.T, architecture string) string {
	t.Helper()
	dir := t.TempDir()
	source := filepath.Join(dir, "main.go")
	if err := os.WriteFile(source, []byte("package main\n\nfunc main() {}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "program-"+architecture)
	cmd := exec.CommandContext(t.Context(), "go", "build", "-o", file, source)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOARCH="+architecture)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return file
}

func image() Image {
	return Image{Reference: "registry.example.com:5000/tools/nodeagent:1.0", Path: "/usr/bin/nodeagent", Version: "1.0",
		Source: "https://example.com"}
}

// files reads an archive.
func files(t *testing.T, r io.Reader) map[string]string {
	t.Helper()
	found := map[string]string{}
	archive := tar.NewReader(r)
	for {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return found
		}
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(archive)
		if err != nil {
			t.Fatal(err)
		}
		found[header.Name] = string(data)
	}
}

// blob returns the content of a descriptor, whose size and digest must match.
func blob(t *testing.T, archive map[string]string, d descriptor) []byte {
	t.Helper()
	data, ok := archive[blobPath(d.Digest)]
	if !ok || digest([]byte(data)) != d.Digest || len(data) != d.Size {
		t.Fatalf("blob %+v: present %v, %d bytes, digest %s", d, ok, len(data), digest([]byte(data)))
	}
	return []byte(data)
}

func decode[T any](t *testing.T, data []byte) T {
	t.Helper()
	var v T
	if err := json.Unmarshal(data, &v); err != nil {
		t.Fatal(err)
	}
	return v
}

func TestWrite(t *testing.T) {
	var programs []Program
	for _, architecture := range []string{"amd64", "arm64"} {
		p, err := ReadProgram(program(t, architecture))
		if err != nil || p.Architecture != architecture {
			t.Fatalf("%s is %q, %v", architecture, p.Architecture, err)
		}
		programs = append(programs, p)
	}
	for n := 1; n <= len(programs); n++ {
		var first, second bytes.Buffer
		if err := image().Write(&first, programs[:n]...); err != nil {
			t.Fatal(err)
		}
		if err := image().Write(&second, programs[:n]...); err != nil || !bytes.Equal(first.Bytes(), second.Bytes()) {
			t.Errorf("the same programs made another archive (%v)", err)
		}
		archive := files(t, &first)
		index := decode[document](t, []byte(archive["index.json"]))
		top := index.Manifests[0]
		if diff := cmp.Diff(map[string]string{annotationTag: "1.0", annotationName: image().Reference},
			top.Annotations); diff != "" {
			t.Error(diff)
		}
		manifests := []descriptor{top}
		if n > 1 {
			manifests = decode[document](t, blob(t, archive, top)).Manifests
		}
		for i, m := range manifests {
			checkManifest(t, archive, m, programs[i])
		}
		if _, docker := archive["manifest.json"]; docker != (n == 1) {
			t.Errorf("%d programs: docker's manifest is there: %v", n, docker)
		}
	}
}

// checkManifest follows a manifest down to the program.
func checkManifest(t *testing.T, archive map[string]string, m descriptor, want Program) {
	t.Helper()
	if m.Platform == nil || *m.Platform != (platform{want.Architecture, "linux"}) {
		t.Errorf("platform %+v", m.Platform)
	}
	manifest := decode[document](t, blob(t, archive, m))
	config := decode[struct {
		Architecture string
		Config       struct{ Entrypoint []string }
		RootFS       struct {
			DiffIDs []string `json:"diff_ids"`
		}
	}](t, blob(t, archive, *manifest.Config))
	unpacked, err := gzip.NewReader(bytes.NewReader(blob(t, archive, manifest.Layers[0])))
	if err != nil {
		t.Fatal(err)
	}
	plain, err := io.ReadAll(unpacked)
	if err != nil {
		t.Fatal(err)
	}
	if digest(plain) != config.RootFS.DiffIDs[0] || config.Architecture != want.Architecture {
		t.Errorf("configuration %+v is not of this layer", config)
	}
	inside := files(t, bytes.NewReader(plain))
	if diff := cmp.Diff(map[string]string{"usr/": "", "usr/bin/": "", "usr/bin/nodeagent": string(want.Data)},
		inside); diff != "" {
		t.Error("the image does not hold the one program and nothing else")
	}
	if diff := cmp.Diff([]string{"/usr/bin/nodeagent"}, config.Config.Entrypoint); diff != "" {
		t.Error(diff)
	}
}

func TestRefused(t *testing.T) {
	if _, err := ReadProgram("image.go"); err == nil {
		t.Error("a text was taken for a program")
	}
	if _, err := ReadProgram("/bin/ls"); err == nil || !strings.Contains(err.Error(), "static") {
		t.Errorf("a program that needs a loader: %v", err)
	}
	for _, reference := range []string{"", "nodeagent", "nodeagent:", "registry.example.com:5000/nodeagent"} {
		i := image()
		i.Reference = reference
		if err := i.Write(io.Discard, Program{"amd64", nil}); err == nil {
			t.Errorf("reference %q was taken", reference)
		}
	}
	if err := image().Write(io.Discard); err == nil {
		t.Error("an image of nothing was made")
	}
}
