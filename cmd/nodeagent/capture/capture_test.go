package capture

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/internal/host/kmsg"
	"github.com/nodeagent/nodeagent/internal/host/systemd"
)

// members unpacks a file.
func members(t *testing.T, file []byte) map[string]string {
	t.Helper()
	zipped, err := gzip.NewReader(bytes.NewReader(file))
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for r := tar.NewReader(zipped); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return found
		}
		data, readErr := io.ReadAll(r)
		if err != nil || readErr != nil || header.Mode != 0o600 {
			t.Fatalf("%s: %v, %v, mode %o", header.Name, err, readErr, header.Mode)
		}
		found[header.Name] = string(data)
	}
}

func part(name string, form Form, text string, err error) Part {
	return Part{Name: name, Form: form, Limit: time.Minute, Read: func(context.Context) ([]byte, error) {
		return []byte(text), err
	}}
}

// A part that hangs, fails or is too large affects only itself, and the manifest reports it.
func TestCollect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		end := make(chan struct{})
		hangs := Part{Name: "hangs", Limit: 10 * time.Second, Read: func(context.Context) ([]byte, error) {
			<-end
			return nil, nil
		}}
		began := time.Now()
		file, m, err := Collect(t.Context(), "v1", []Part{hangs, part("fails", Text, "", errors.New("EIO")),
			part("text", Text, "ok\n", nil), part("long", Text, strings.Repeat("line\n", 50), nil),
			part("json", JSON, `{"b":1}`, nil), part("broken", JSON, `{`, nil),
			part("large", JSON, `"`+strings.Repeat("x", 101)+`"`, nil), part("raw", Raw, "\x1f\x8b", nil),
			part("no room", Raw, strings.Repeat("x", 99), nil)}, Limits{Member: 100, Total: 200})
		if took := time.Since(began); err != nil || took > 12*time.Second {
			t.Fatalf("%v after %s", err, took)
		}
		close(end)
		got := members(t, file)
		var manifest Manifest
		if err := json.Unmarshal([]byte(got[ManifestName]), &manifest); err != nil {
			t.Fatal(err)
		}
		for i, want := range []Member{{Name: "hangs", Error: "it hangs: no answer within 10s"},
			{Name: "fails", Error: "EIO"}, {Name: "text", Bytes: 3},
			{Name: "long", Bytes: 100, Cut: "the first 150 of 250 bytes"}, {Name: "json", Bytes: 7},
			{Name: "broken", Error: "unexpected EOF"}, {Name: "large", Error: "103 bytes, more than 100"},
			{Name: "raw", Bytes: 2},
			{Name: "no room", Error: "left out: with its 99 bytes the file would have more than 200"}} {
			if manifest.Members[i] != want {
				t.Errorf("%+v, want %+v", manifest.Members[i], want)
			}
			if _, there := got[want.Name]; there != (want.Error == "") {
				t.Errorf("%s is in the file: %v", want.Name, there)
			}
		}
		if len(m.Failed()) != 5 || manifest.Format != Format || manifest.Agent != "v1" || got["raw"] != "\x1f\x8b" {
			t.Errorf("%+v", manifest)
		}
	})
}

func TestNoSecretIsCaptured(t *testing.T) {
	const secret = "hunter2hunter2"
	planted := map[string]string{
		"token": "Authorization: Bearer " + secret, "url": "https://joe:" + secret + "@proxy:3128",
		"key":      "-----BEGIN PRIVATE KEY-----\n" + secret + "\n-----END PRIVATE KEY-----\n",
		"password": secret, "option": "username=joe,password=" + secret, "escape": "\x1b]0;owned\x07",
	}
	document, err := json.Marshal(map[string]any{"list": []any{planted}})
	if err != nil {
		t.Fatal(err)
	}
	parts := []Part{part("check.json", JSON, string(document), nil)}
	for name, text := range planted {
		if name == "password" {
			text = "password: " + text
		}
		parts = append(parts, part(name, Text, "before\n"+text+"\nafter\n", nil),
			part(name+"-error", Text, "", errors.New(text)))
	}
	file, _, err := Collect(t.Context(), "v1", parts, DefaultLimits())
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range members(t, file) {
		if strings.Contains(text, secret) || strings.ContainsAny(text, "\x1b\x07") {
			t.Errorf("%s: %q", name, text)
		}
		if !strings.HasSuffix(name, ".json") && (!strings.HasPrefix(text, "before\n") ||
			!strings.HasSuffix(text, "after\n")) {
			t.Errorf("%s lost more: %q", name, text)
		}
	}
}

func TestKernelLogHasItsLastLines(t *testing.T) {
	h := hosttest.Host(t)
	broken := error(nil)
	h.KernelLog = func(_ context.Context, each func(kmsg.KernelRecord)) error {
		for i := range 7 {
			each(kmsg.KernelRecord{Time: time.Duration(i) * time.Second, Text: fmt.Sprint("line ", i), Facility: i / 6})
		}
		return broken
	}
	want := "(4 lines before these)\n[    4.000000] line 4\n[    5.000000] line 5\n[    6.000000] (facility 1) line 6\n"
	if got, err := KernelLog(t.Context(), h, 3); err != nil || string(got) != want {
		t.Errorf("%v\n%s", err, got)
	}
	broken = errors.New("EPIPE")
	if got, err := KernelLog(t.Context(), h, 9); err != nil || !strings.HasPrefix(string(got), "[    0.000000] line 0\n") ||
		!strings.HasSuffix(string(got), "(reading it ended here: EPIPE)\n") {
		t.Errorf("%v\n%s", err, got)
	}
	h.KernelLog = func(context.Context, func(kmsg.KernelRecord)) error { return errors.New("EPERM") }
	if _, err := KernelLog(t.Context(), h, 9); err == nil {
		t.Error("a log that cannot be read is empty")
	}
}

func TestUnitsNameThoseThatDoNotRun(t *testing.T) {
	h := hosttest.Host(t)
	h.Systemd.Units = hosttest.Answer(systemd.Units{Running: []systemd.Unit{{Name: "kubelet.service"}},
		Failed: []systemd.Unit{{Name: "containerd.service"}}}, nil)
	got, err := Units(t.Context(), h)
	_, neither, _ := strings.Cut(string(got), `"neither":[`)
	neither, _, _ = strings.Cut(neither, "]")
	if err != nil || strings.Contains(neither, `"kubelet.service"`) || strings.Contains(neither, `"containerd.service"`) ||
		!strings.Contains(neither, `"crio.service"`) || !strings.Contains(neither, `"nodeagent.service"`) {
		t.Errorf("%v: %s", err, got)
	}
}

func TestVersionsSayWhatDoesNotAnswer(t *testing.T) {
	h := hosttest.Host(t)
	h.Kubelet.Metric = nil
	got, err := Versions(t.Context(), h, "v1")
	var versions map[string]string
	if json.Unmarshal(got, &versions) != nil || err != nil || !strings.HasPrefix(versions["agent"], "v1 go") ||
		versions["kubelet"] != "error: not configured" || !strings.HasPrefix(versions["kernel"], "error: ") {
		t.Errorf("%v: %s", err, got)
	}
}
