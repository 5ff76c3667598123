package thread

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// EndingPID is the process of Ending.
const EndingPID = 7

// Ending writes to root a process whose main thread has ended: thread 8 ends while it is read, and has no mount table
// any more; 9 lives, in the mount namespace "mnt:[9]" with this table. The real /proc does not list 8 and 9 beside 7.
func Ending(t testing.TB, root, mountinfo string) {
	t.Helper()
	stat := func(id int, state string, flags int) string {
		return fmt.Sprintf("%d (x) %s 1 1 1 0 -1 %d 0 0 0 0 0 0 0 0 20 0 3 0 77 0 0\n", id, state, flags)
	}
	texts := map[string]string{"9/mountinfo": mountinfo}
	for id, text := range map[int]string{7: stat(7, "Z", 0x40000c), 8: stat(8, "S", 0x400000), 9: stat(9, "D", 0x400000)} {
		texts[fmt.Sprintf("%d/stat", id)] = text
		texts[fmt.Sprintf("7/task/%d/stat", id)] = text
		texts[fmt.Sprintf("%d/cgroup", id)] = "0::/system.slice/x.service\n"
	}
	links := map[string]string{"8/ns/mnt": "mnt:[9]", "9/ns/mnt": "mnt:[9]"}
	for name, text := range texts {
		file := filepath.Join(root, "proc", name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, target := range links {
		link := filepath.Join(root, "proc", name)
		if err := os.MkdirAll(filepath.Dir(link), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(target, link); err != nil {
			t.Fatal(err)
		}
	}
}
