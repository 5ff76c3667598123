package mountinfo_test

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/nodeagent/nodeagent/internal/host/mountinfo"
)

// table returns a mount table of n lines like that of a node with pods.
func table(n int) []string {
	lines := []string{"27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,discard"}
	for i := 1; i < n; i++ {
		lines = append(lines, fmt.Sprintf("%d 27 0:%d / /var/lib/kubelet/pods/%08d-0000-4000-8000-000000000000/volumes/"+
			"kubernetes.io~empty-dir/data rw,relatime shared:%d - tmpfs tmpfs rw,size=24684564k", 100+i, 40+i, i, i))
	}
	return lines
}

func text(lines []string) string { return strings.Join(lines, "\n") + "\n" }

// Whatever changes in whichever line of the table, a reader that has read another table before must return the same as
// a parse without any memory. The kernel sends no notification for some of these changes.
func TestReaderSeesEveryChange(t *testing.T) {
	change := func(at int, old, now string) func([]string) []string {
		return func(lines []string) []string {
			if !strings.Contains(lines[at], old) {
				t.Fatalf("line %q has no %q", lines[at], old)
			}
			lines[at] = strings.Replace(lines[at], old, now, 1)
			return lines
		}
	}
	for name, edit := range map[string]func([]string) []string{
		"the filesystem became read-only":     change(0, "- ext4 /dev/vda rw,", "- ext4 /dev/vda ro,"),
		"the mount became read-only":          change(2, " rw,relatime", " ro,relatime"),
		"a directory above was renamed":       change(3, "/var/lib/kubelet/pods/", "/var/lib/kubelet/dead/"),
		"the directory below was removed":     change(3, "/data rw", "/data//deleted rw"),
		"the number was given to another one": change(4, "0:44 /", "0:99 /x"),
		"it is a member of no group":          change(4, " shared:4", ""),
		"options":                             change(1, "size=24684564k", "size=24684564k,inode64"),
		"another number, all else the same":   change(4, "104 27 ", "904 27 "),
		"the first is gone":                   func(lines []string) []string { return lines[1:] },
		"the last is gone":                    func(lines []string) []string { return lines[:4] },
		"one in the middle is gone":           func(lines []string) []string { return append(lines[:2], lines[3:]...) },
		"one more":                            func(lines []string) []string { return append(lines, table(7)[6]) },
		"one more in the middle": func(lines []string) []string {
			return append(append(append([]string{}, lines[:2]...), table(7)[6]), lines[2:]...)
		},
		"another order": func(lines []string) []string { lines[1], lines[3] = lines[3], lines[1]; return lines },
		"a long line": func(lines []string) []string {
			return append(lines, "900 27 0:77 / /m rw - overlay overlay rw,lowerdir="+strings.Repeat("/l:", 50_000))
		},
		"nothing is left": func([]string) []string { return nil },
	} {
		t.Run(name, func(t *testing.T) {
			reader := &mountinfo.Reader{}
			before, err := reader.Read(strings.NewReader(text(table(5))))
			if err != nil || len(before) != 5 {
				t.Fatalf("%d mounts, %v", len(before), err)
			}
			lines := edit(table(5))
			for range 2 { // the changed table is stored correctly, too
				want, err := mountinfo.Parse(strings.NewReader(text(lines)))
				if err != nil {
					t.Fatal(err)
				}
				got, err := reader.Read(strings.NewReader(text(lines)))
				if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); err != nil || diff != "" {
					t.Errorf("%v (-want +got)\n%s", err, diff)
				}
			}
			want, _ := mountinfo.Parse(strings.NewReader(text(table(5))))
			if diff := cmp.Diff(want, before); diff != "" {
				t.Errorf("the table that was returned before has changed (-before +now)\n%s", diff)
			}
			if again, err := reader.Read(strings.NewReader(text(table(5)))); err != nil || !cmp.Equal(want, again) {
				t.Errorf("changed back: %v\n%s", err, cmp.Diff(want, again))
			}
		})
	}
}

// A table that could not be read completely, or has a malformed line, is an error, and is not stored.
func TestReaderErrors(t *testing.T) {
	reader := &mountinfo.Reader{}
	if _, err := reader.Read(strings.NewReader(text(table(5)))); err != nil {
		t.Fatal(err)
	}
	broken := io.MultiReader(strings.NewReader(text(table(3))), iotest.ErrReader(io.ErrUnexpectedEOF))
	if got, err := reader.Read(broken); err == nil || got != nil {
		t.Errorf("cut off: %v, %v", got, err)
	}
	if got, err := reader.Read(strings.NewReader(text(append(table(3), "no mount")))); err == nil || got != nil {
		t.Errorf("malformed: %v, %v", got, err)
	}
	if got, err := reader.Read(strings.NewReader(text(table(5)))); err != nil || len(got) != 5 {
		t.Errorf("afterwards: %d mounts, %v", len(got), err)
	}
}

// Appending to a table does not change other callers' tables, and concurrent readers do not wait for each other.
func TestReaderIsShared(t *testing.T) {
	reader := &mountinfo.Reader{}
	first, err := reader.Read(strings.NewReader(text(table(5))))
	if err != nil {
		t.Fatal(err)
	}
	mine, other := append(first, mountinfo.Mount{ID: 1}), append(first, mountinfo.Mount{ID: 2})
	if mine[5].ID != 1 || other[5].ID != 2 {
		t.Errorf("two who append to one table: %d and %d", mine[5].ID, other[5].ID)
	}
	hangs, hung := io.Pipe()
	var wg sync.WaitGroup
	begun := make(chan struct{})
	wg.Go(func() {
		_, _ = reader.Read(io.MultiReader(notify{begun}, hangs))
	})
	<-begun
	got, err := reader.Read(strings.NewReader(text(table(6))))
	if err != nil || len(got) != 6 {
		t.Errorf("beside one that hangs: %d mounts, %v", len(got), err)
	}
	hung.Close()
	wg.Wait()
	for range 8 {
		wg.Go(func() {
			if got, err := reader.Read(strings.NewReader(text(table(6)))); err != nil || len(got) != 6 {
				t.Errorf("%d mounts, %v", len(got), err)
			}
		})
	}
	wg.Wait()
}

// notify closes begun when it is read.
type notify struct{ begun chan struct{} }

func (n notify) Read([]byte) (int, error) { close(n.begun); return 0, io.EOF }

func BenchmarkRead(b *testing.B) {
	for _, n := range []int{1000, 2000, 5000} {
		whole := text(table(n))
		b.Run(fmt.Sprint("parsed-", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				_, _ = mountinfo.Parse(strings.NewReader(whole))
			}
		})
		b.Run(fmt.Sprint("unchanged-", n), func(b *testing.B) {
			b.ReportAllocs()
			reader := &mountinfo.Reader{}
			for b.Loop() {
				_, _ = reader.Read(strings.NewReader(whole))
			}
		})
	}
}
