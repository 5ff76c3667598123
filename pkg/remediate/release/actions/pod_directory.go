package actions

import (
	"context"
	"errors"
	"fmt"
	"path"

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
		return nil, mutate.Refusal{Why: fmt.Sprintf("%s is not the directory of pod %q", o.ID, o.Pod.UID)}
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
