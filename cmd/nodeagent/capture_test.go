package main

import (
	"archive/tar"
	"compress/gzip"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nodeagent/nodeagent/cmd/nodeagent/capture"
	"github.com/nodeagent/nodeagent/cmd/nodeagent/config"
	"github.com/nodeagent/nodeagent/pkg/detect/plugin"
)

// Runs on the machine of the test.
func TestCapture(t *testing.T) {
	d := newBadDay(t)
	file := filepath.Join(d.dir, "capture.tar.gz")
	var told struct {
		Manifest capture.Manifest `json:"manifest"`
	}
	out, err := d.command("capture", file, "-o", "json").Output()
	if json.Unmarshal(out, &told) != nil {
		t.Fatalf("%v: %s", err, out)
	}
	stat, err := os.Stat(file)
	if err != nil || stat.Mode() != 0o600 {
		t.Errorf("%v, %v", stat, err)
	}
	failed := map[string]string{}
	for _, m := range told.Manifest.Failed() {
		failed[m.Name] = m.Error
	}
	for _, name := range []string{"inspection.json.gz", "check.json", "mounts.txt", "versions.json", "config.yaml"} {
		if failed[name] != "" {
			t.Errorf("%s: %s", name, failed[name])
		}
	}
	if !strings.Contains(failed["status.json"], "no agent is running") {
		t.Errorf("status of no agent: %q", failed["status.json"])
	}
	if out, err := inspected("--from", unpack(t, file, "inspection.json.gz")); exitOf(err) == -1 ||
		!strings.Contains(out, " objects: ") {
		t.Errorf("%v: %s", err, out)
	}
	stdout, err := d.command("capture", "-").Output()
	if os.WriteFile(file+"2", stdout, 0o600) != nil || unpack(t, file+"2", "mounts.txt") == "" {
		t.Errorf("to standard output: %v", err)
	}
	if out, err := d.command("capture", file).CombinedOutput(); err == nil ||
		!strings.Contains(string(out), "not overwritten") {
		t.Errorf("%v: %s", err, out)
	}
}

// An invalid configuration affects only its own part.
func TestCaptureWithAnInvalidConfiguration(t *testing.T) {
	file := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(file, []byte("no-such-key: 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := newCaptured(t.Context(), &options{configFile: file})
	for _, part := range c.parts() {
		if part.Name != "config.yaml" {
			continue
		}
		if _, err := part.Read(t.Context()); err == nil || !strings.Contains(err.Error(), "no-such-key") {
			t.Errorf("%v", err)
		}
	}
	if got := c.valid().StateDir; got != config.Default().StateDir {
		t.Errorf("state in %q", got)
	}
}

// unpack writes a member of an archive to a file next to the archive.
func unpack(t *testing.T, file, member string) string {
	t.Helper()
	archive, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer archive.Close()
	zipped, err := gzip.NewReader(archive)
	if err != nil {
		t.Fatal(err)
	}
	for r := tar.NewReader(zipped); ; {
		header, err := r.Next()
		if err != nil {
			t.Fatalf("no %s: %v", member, err)
		}
		if header.Name != member {
			continue
		}
		inside := filepath.Join(filepath.Dir(file), member)
		out, err := os.Create(inside)
		if err != nil {
			t.Fatal(err)
		}
		defer out.Close()
		if _, err := out.ReadFrom(r); err != nil {
			t.Fatal(err)
		}
		return inside
	}
}

func TestCaptureHasNoArguments(t *testing.T) {
	cfg := config.Default()
	cfg.Plugins = []plugin.Settings{{Name: "mine", Args: []string{"--key", "hunter2"}}}
	text, err := withoutArguments(cfg).YAML()
	if err != nil || strings.Contains(string(text), "hunter2") || !strings.Contains(string(text), "2 arguments") ||
		cfg.Plugins[0].Args[1] != "hunter2" {
		t.Errorf("%v: %s", err, text)
	}
}
