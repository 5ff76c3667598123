package child_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/nodeagent/nodeagent/internal/host/mount"
	"github.com/nodeagent/nodeagent/internal/mutate/child"
	"github.com/nodeagent/nodeagent/internal/mutate/mutatetest"
)

// Related mounts that are gone after an unmount are reported as harm, unrelated ones are not.
func TestUnmountReportsHarm(t *testing.T) {
	mutatetest.Root(t)
	t.Chdir(t.TempDir())
	for name, test := range map[string]struct {
		sharing bool
		unread  bool
		want    error
	}{
		"a peer":                          {sharing: true, want: child.ErrHarm},
		"another pod's, which just ended": {},
		"the table cannot be read":        {unread: true, want: child.ErrHarm},
	} {
		t.Run(name, func(t *testing.T) {
			n, uid := mutatetest.New(t), mutatetest.UID(t)
			m := n.Mount("mine", n.PodDir(uid, "volumes/x/y"), "tmpfs", 0)
			other := n.Mount("other", n.PodDir(mutatetest.UID(t), "volumes/x/y"), "tmpfs", 0)
			err := child.UnmountAndCheck(podsDir(n), uid, m, func() ([]mount.Mount, error) {
				mounts, err := mount.TableOf(n.Host, os.Getpid())
				gone := len(n.Mounts(m.Point)) == 0
				if gone && test.unread {
					return nil, errors.New("no table")
				}
				if gone {
					mounts = slices.DeleteFunc(mounts, func(now mount.Mount) bool { return now.ID == other.ID })
				}
				for i := range mounts {
					if test.sharing && (mounts[i].ID == m.ID || mounts[i].ID == other.ID) {
						mounts[i].Shared = 12345
					}
				}
				return mounts, err
			})
			if !errors.Is(err, test.want) || test.want == nil && err != nil {
				t.Errorf("got %v, want %v", err, test.want)
			}
			if test.want != nil && !errors.Is(err, child.ErrChanged) {
				t.Error("the release of the pod would go on")
			}
		})
	}
}

// A mount on a shared mount that could not be made private stays, even if that was shared again later.
func TestUnmountStillShared(t *testing.T) {
	mutatetest.Root(t)
	t.Chdir(t.TempDir())
	n, uid := mutatetest.New(t), mutatetest.UID(t)
	outer := n.Mount("outer", n.PodDir(uid, "volumes/x/y"), "tmpfs", 0)
	m := n.Mount("inner", filepath.Join(outer.Point, "in"), "tmpfs", 0)
	err := child.UnmountAndCheck(podsDir(n), uid, m, func() ([]mount.Mount, error) {
		mounts, err := mount.TableOf(n.Host, os.Getpid())
		for i := range mounts {
			if mounts[i].ID == outer.ID {
				mounts[i].Shared = 12345
			}
		}
		return mounts, err
	})
	var refusal child.Refusal
	if !errors.As(err, &refusal) || len(n.Mounts(m.Point)) != 1 {
		t.Errorf("got %v, %+v", err, n.Mounts(m.Point))
	}
}

func podsDir(n *mutatetest.Node) string { return filepath.Join(n.Host.Paths.KubeletRoot, "pods") }
