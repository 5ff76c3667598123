package actions

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/nodeagent/nodeagent/internal/mutate"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/pkg/remediate/release/csi"
)

// podDirectoryAction removes the directory of a pod if it holds only directories and the few files that kubelet itself
// creates. Any other file may be user data, and then the whole directory is left untouched.
func podDirectoryAction() Action {
	return Action{
		Kind: object.PodDirectory,
		Plan: func(o object.Assessment, _ Settings) (string, string) {
			return fmt.Sprintf(
				"remove kubelet's own files and the empty directories in %s; nothing if it holds any data", o.ID), ""
		},
		Needs: func(_ object.Assessment, rest []object.Assessment, _ Settings) string {
			for _, other := range rest {
				switch {
				case other.IsDead():
				case other.Kind == object.Mount:
					return fmt.Sprintf("%s is still mounted", other.Identity.Mount.Point)
				case other.Kind == object.Process, other.Kind == object.Container:
					return fmt.Sprintf("%s %s still exists", other.Kind, shortID(other.ID))
				}
			}
			return ""
		},
		Look: func(ctx context.Context, t Tools, o object.Assessment) string {
			_, err := clearance(ctx, t, o)
			var refusal mutate.Refusal
			if errors.As(err, &refusal) {
				return refusal.Why
			}
			return ""
		},
		Do:     removePodDirectory,
		Verify: fileGone,
	}
}

// clearance reads the whole directory and decides how to remove each entry.
func clearance(ctx context.Context, t Tools, o object.Assessment) ([]removal, error) {
	if path.Base(o.ID) != o.Pod.UID || o.Pod.UID == "" {
		return nil, refuse("%s is not the directory of pod %q", o.ID, o.Pod.UID)
	}
	tree, err := t.Mutator.Tree(ctx, o.Pod.UID)
	if err != nil || len(tree) == 0 {
		return nil, err
	}
	if tree[0].File != fileOf(o) {
		return nil, fmt.Errorf("directory %s is inode %d: %w", o.ID, tree[0].File.Inode, mutate.ErrChanged)
	}
	for i := range tree { // only in a plan: files below a mount are read once it is gone
		if entry := &tree[i]; entry.Mount && t.Unmounted[path.Join(o.ID, entry.Path)] {
			entry.Mount, entry.Size = false, 0
		}
	}
	steps, refusal := planRemoval(tree, t.Settings.AllowEmptyDir)
	if refusal == "" {
		refusal = mustStay(ctx, t, o.Pod.UID, tree, steps)
	}
	if refusal != "" {
		return nil, mutate.Refusal{Why: refusal}
	}
	return steps, nil
}

// mustStay returns why entries must not be moved away: they are still needed, or the quarantine has no room.
func mustStay(ctx context.Context, t Tools, uid string, tree []mutate.Entry, steps []removal) string {
	need, moves := uint64(0), false
	for _, step := range steps {
		if step.kind != moveAway {
			continue
		}
		if csi.IsVolumeNote(step.entry.Path) {
			if why := t.CSI.VolumeNeeded(ctx, uid, step.entry); why != "" {
				return why
			}
		}
		moves, need = true, mutate.AddBytes(need, sizeBelow(tree, step.entry.Path))
	}
	if !moves {
		return ""
	}
	kept, err := t.Mutator.Quarantined(ctx)
	if err != nil {
		return fmt.Sprintf("the size of the quarantine is not known: %v", err)
	}
	return mutate.QuarantineFull(kept, need, t.Settings.QuarantineBytes)
}

func removePodDirectory(ctx context.Context, t Tools, o object.Assessment) error {
	steps, err := clearance(ctx, t, o)
	if err != nil {
		return err
	}
	for _, step := range steps {
		switch step.kind {
		case moveAway:
			err = t.Mutator.Quarantine(ctx, o.Pod.UID, step.entry.Path, step.entry.File, t.Settings.QuarantineBytes)
			t.Log.Info("moved to quarantine", "pod", o.Pod.UID, "file", step.entry.Path, "to",
				t.Mutator.QuarantineDir(), "err", err)
		case unlink:
			err = t.Mutator.RemoveFile(ctx, o.Pod.UID, step.entry.Path, step.entry.File)
		case removeDir:
			err = t.Mutator.RemoveDir(ctx, o.Pod.UID, step.entry.Path, step.entry.File)
		}
		if err != nil {
			return err
		}
		if err := t.FaultPoint("pod-directory: one entry"); err != nil {
			return err
		}
	}
	return nil
}

// removal is the removal of one entry of a pod's directory.
type removal struct {
	entry mutate.Entry
	kind  removalKind
}

type removalKind int

const (
	removeDir removalKind = iota
	unlink
	moveAway
)

// kubeletFiles are the patterns of the regular files that kubelet creates for itself, relative to the pod's directory.
// None of them is in a volume. See pkg/kubelet (kubelet_pods.go: etc-hosts), kuberuntime_container.go (termination
// logs), userns/userns_manager.go, and volume/util (SetReady).
var kubeletFiles = []struct {
	pattern string
	empty   bool // only if it is empty
	origin  string
}{
	{"etc-hosts", false, "generated from the pod's addresses at each start"},
	{"userns", false, "the range of user IDs, freed when the directory goes"},
	{"containers/*/*", false, "termination message, which kubelet has read"},
	{"plugins/*/*/ready", true, "marks that a volume was set up"},
	{"volume-subpaths/*/*/*", true, "mount point of a subpath that is a file"},
}

// planRemoval returns how to remove a pod's directory, or why it must not be removed. It is pure. tree lists parents
// before children and begins with the directory itself.
func planRemoval(tree []mutate.Entry, allowEmptyDir bool) (steps []removal, refusal string) {
	moved := map[string]bool{} // volumes moved away as a whole
	var dirs []mutate.Entry
	for _, entry := range tree {
		if inMoved(moved, entry.Path) {
			if entry.Mount {
				return nil, fmt.Sprintf("%s is a mount point", entry.Path)
			}
			continue
		}
		switch {
		case entry.Mount:
			return nil, fmt.Sprintf("%s is a mount point", entry.Path)
		case matches(blockVolumes, entry.Path):
			return nil, fmt.Sprintf("%s: a block volume is still mapped", entry.Path)
		case allowEmptyDir && entry.Type == mutate.Directory && matches(emptyDirs, entry.Path) &&
			hasChildren(tree, entry.Path):
			moved[entry.Path] = true
			steps = append(steps, removal{entry, moveAway})
		case entry.Type == mutate.Directory:
			dirs = append(dirs, entry)
		default:
			kind, why := planFile(tree, entry)
			if why != "" {
				return nil, why
			}
			steps = append(steps, removal{entry, kind})
		}
	}
	for _, dir := range slices.Backward(dirs) {
		steps = append(steps, removal{dir, removeDir})
	}
	return steps, ""
}

// inMoved reports whether a path is in a volume moved away as a whole. Volumes are three levels deep.
func inMoved(moved map[string]bool, name string) bool {
	parts := strings.SplitN(name, "/", 4)
	return len(parts) == 4 && moved[strings.Join(parts[:3], "/")]
}

const (
	emptyDirs    = "volumes/kubernetes.io~empty-dir/*" // the roots of disk-backed emptyDir volumes
	blockVolumes = "volumeDevices/*/*"                 // volumes that kubelet maps as devices
)

func matches(pattern, name string) bool {
	ok, _ := path.Match(pattern, name)
	return ok
}

// sizeBelow returns the size of a file or of a whole directory, in bytes.
func sizeBelow(tree []mutate.Entry, top string) uint64 {
	total := uint64(0)
	for _, entry := range tree {
		if entry.Path == top || strings.HasPrefix(entry.Path, top+"/") {
			total = mutate.AddBytes(total, entry.Size)
		}
	}
	return total
}

func hasChildren(tree []mutate.Entry, dir string) bool {
	return slices.ContainsFunc(tree, func(e mutate.Entry) bool { return path.Dir(e.Path) == dir })
}

// planFile decides about an entry that is not a directory.
func planFile(tree []mutate.Entry, entry mutate.Entry) (removalKind, string) {
	if entry.Type != mutate.Regular {
		return 0, fmt.Sprintf("%s is neither a directory nor a regular file", entry.Path)
	}
	for _, file := range kubeletFiles {
		if matches(file.pattern, entry.Path) && (!file.empty || entry.Size == 0) {
			return unlink, ""
		}
	}
	if csi.IsVolumeNote(entry.Path) {
		mount := path.Join(path.Dir(entry.Path), "mount")
		if hasChildren(tree, mount) {
			return 0, fmt.Sprintf("%s is not empty: data of the volume may have been written below its mount point",
				mount)
		}
		return moveAway, ""
	}
	if strings.HasPrefix(entry.Path, "volumes/kubernetes.io~empty-dir/") {
		return 0, fmt.Sprintf("%s (%d bytes) is user data in an emptyDir", entry.Path, entry.Size)
	}
	return 0, fmt.Sprintf("%s (%d bytes) may be user data", entry.Path, entry.Size)
}
