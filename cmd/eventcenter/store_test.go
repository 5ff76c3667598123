package main

import (
	"bytes"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/nodeagent/nodeagent/internal/host/hosttest"
)

// When a disk becomes read-only, after an error such as a bad block, writes fail with the reason, reads work, and a
// metric counts it. A center restarted after the repair has every acknowledged event.
func TestReadOnlyDisk(t *testing.T) {
	disk := hosttest.NewLoopFS(t, "ext4")
	mount := filepath.Join(t.TempDir(), "disk")
	disk.Mount(mount, "errors=remount-ro")
	dir := filepath.Join(mount, "center")
	p := start(t, dir)
	must(t, p.post(raised("node-1", 1), raised("node-2", 1)))
	disk.TriggerError()
	var refused error
	await(t, func() error {
		refused = p.post(raised("node-1", 2))
		return unless(refused != nil, "an event is taken on a read-only disk: %s", p.log)
	})
	must(t, contains(refused.Error(), "503", "the journal cannot be written"))
	for path, want := range map[string]string{"/healthz": "alive", "/v1/faults": "node-2", "/v1/events": `"newest":"2"`,
		"/v1/nodes/prod/node-1": "node-1", "/metrics": "eventcenter_append_failures_total "} {
		must(t, p.has(path, http.StatusOK, want))
	}
	if p.has("/metrics", http.StatusOK, "eventcenter_append_failures_total 0\n") == nil {
		t.Error("no failure is counted")
	}
	p.stop(syscall.SIGTERM)
	disk.Unmount(mount)
	disk.Check()
	disk.Mount(mount, "errors=remount-ro")
	p = start(t, dir)
	must(t, p.post(raised("node-1", 2)))
	must(t, p.has("/v1/events", http.StatusOK, `"newest":"3"`))
	p.stop(syscall.SIGTERM)
}

// With a damaged control store the center still takes and returns events. It delivers none, and reports that; the
// damaged file stays unchanged.
func TestDamagedControl(t *testing.T) {
	for name, damage := range map[string]func(data []byte) []byte{
		"no database": func([]byte) []byte { return bytes.Repeat([]byte("x"), 8192) },
		"cut off":     func(data []byte) []byte { return data[:len(data)/2-100] },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			start(t, dir).stop(syscall.SIGTERM)
			file := filepath.Join(dir, "control.db")
			data, err := os.ReadFile(file)
			must(t, err)
			damaged := damage(data)
			must(t, os.WriteFile(file, damaged, 0o600))
			p := start(t, dir)
			must(t, p.post(raised("node-1", 1)))
			must(t, p.has("/readyz", http.StatusOK, "the center delivers no events"))
			must(t, p.has("/v1/events", http.StatusOK, `"newest":"1"`))
			must(t, contains(p.log.String(), "open control store failed"))
			p.stop(syscall.SIGTERM)
			unchanged(t, file, damaged)
		})
	}
}

func unchanged(t *testing.T, file string, before []byte) {
	t.Helper()
	if now, err := os.ReadFile(file); err != nil || !bytes.Equal(now, before) {
		t.Errorf("%s is changed: %v", file, err)
	}
}

// Events of the next version's agents are stored unchanged, and the parts that this version knows are shown. Files of
// the next version are refused by name and not changed: the next version, or this one with its own files, can continue.
func TestNextVersion(t *testing.T) {
	dir := t.TempDir()
	p := start(t, dir)
	for sequence, kind := range []string{"fault.raised.v1", "fault.raised.v2"} {
		text := string(mustEncode(raised("n", uint64(sequence)+1)))
		text = strings.ReplaceAll(text, "fault.raised.v1", kind)
		text = strings.Replace(text, `"data":{`, `"region":"eu","data":{"weather":{"sky":"clear"},`, 1)
		must(t, p.send("/v1/events", "application/cloudevents+json", []byte(text)))
	}
	shows := func() {
		t.Helper()
		must(t, p.has("/v1/events", http.StatusOK, `"region":"eu"`, "fault.raised.v2", `"sky":"clear"`))
		must(t, p.has("/v1/faults", http.StatusOK, `"total":1`))
	}
	shows()
	p.stop(syscall.SIGTERM)
	model := filepath.Join(dir, "model.json")
	text, err := os.ReadFile(model)
	must(t, errors.Join(err, contains(string(text), `"version":1`)))
	must(t, os.WriteFile(model, bytes.Replace(text, []byte(`"version":1`), []byte(`"version":2`), 1), 0o600))
	p = start(t, dir) // it is derived: created again
	shows()
	p.stop(syscall.SIGTERM)

	day, err := filepath.Glob(filepath.Join(dir, "journal", "*.db"))
	if err != nil || len(day) != 1 {
		t.Fatal(day, err)
	}
	for _, file := range []struct {
		name, is string
		now      int
	}{{day[0], "reads format 3 only", 3}, {filepath.Join(dir, "control.db"), "knows 1", 1}} {
		format(t, file.name, file.now+1)
		before, err := os.ReadFile(file.name)
		must(t, err)
		expect(t, exitCouldNotTell, fmt.Sprintf("its format is %d, this program %s", file.now+1, file.is), "serve", "--dir", dir,
			"--listen", "127.0.0.1:0")
		unchanged(t, file.name, before)
		format(t, file.name, file.now)
	}
	p = start(t, dir)
	shows()
	must(t, p.post(raised("n", 3)))
}

// format changes the format version in a SQLite file.
func format(t *testing.T, name string, version int) {
	t.Helper()
	db, err := sql.Open("sqlite", name)
	must(t, err)
	_, err = db.ExecContext(t.Context(), "UPDATE meta SET version = ?", version)
	must(t, errors.Join(err, db.Close()))
}
