package guest

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/test/need"
)

// A machine that lost its power while ext4 wrote the block that commits a transaction, so that only some of its sectors
// were written, has the data of the earlier transactions at its next start.
func TestPowerLossInACommit(t *testing.T) {
	need.Flag(t, *withGuest, "-guest: boots a machine of its own")
	repo, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "commit-") // short enough for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	image := filepath.Join(dir, "disk.img")
	tearCommit(t, image)
	disk, err := NewDisk(image)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = disk.Close() })
	log := &strings.Builder{}
	done := make(chan struct{})
	booted, err := Server{Guest: Guest{Cache: filepath.Join(repo, ".cache"), Dir: dir, Output: log}, Disk: disk, Files: map[string]string{},
		Command: "grep /data /proc/mounts; cp /proc/mounts /data/kept && sync; poweroff -f\n"}.Boot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(done)
		_ = booted.cmd.Wait()
	}()
	select {
	case <-done:
	case <-time.After(5 * time.Minute):
		t.Error("the machine does not end")
	}
	if _, err := booted.Kill(); err != nil && !strings.Contains(err.Error(), "already") {
		t.Error(err)
	}
	data, err := os.ReadFile(image)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(log.String(), "/dev/vda /data ext4") {
		t.Errorf("no disk:\n%s", log)
	}
	const block = 4096
	if first, second := data[5000*block], data[5001*block]; first != 'A' || second != 0 {
		t.Errorf("of the first transaction there is %q, of the second, which was not committed, %q", first, second)
	}
}

// tearCommit makes a file system whose log has two transactions, each of which writes one block. Of the block that
// commits the second only the first sector is written.
func tearCommit(t *testing.T, image string) {
	t.Helper()
	const block = 4096
	commands := "jo -c\n"
	for at, letter := range map[string]string{"5000": "A", "5001": "B"} {
		if err := os.WriteFile(image+at, bytes.Repeat([]byte(letter), block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	commands += "jw -b 5000 " + image + "5000\njw -b 5001 " + image + "5001\njc\n"
	if err := os.WriteFile(image+".commands", []byte(commands), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"truncate", "-s", "64M", image}, {"mkfs.ext4", "-q", "-F", "-b", "4096", image},
		{"debugfs", "-w", "-f", image + ".commands", image}} {
		cmd := exec.CommandContext(t.Context(), need.Program(t, args[0]), args[1:]...)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", args, err, out)
		}
	}
	data, err := os.ReadFile(image)
	if err != nil {
		t.Fatal(err)
	}
	commit := bytes.LastIndex(data, []byte{0xc0, 0x3b, 0x39, 0x98, 0, 0, 0, 2})
	if commit < 0 || commit%block != 0 {
		t.Fatalf("no transaction is committed: %d", commit)
	}
	copy(data[commit+sector:], "what was there before")
	if err := os.WriteFile(image, data, 0o600); err != nil {
		t.Fatal(err)
	}
}
