package inspect

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// stillGoneLimit bounds one question of StillGone.
const stillGoneLimit = 10 * time.Second

// StillGone asks kubelet and the manifests of static pods once more for a pod that was proven to be gone: it is for
// right before a step, when the whole pass that proved it is some steps ago. A static pod returns under its old UID
// when its manifest is put back. An error says why nothing may be done to what belongs to the pod; nil says that
// kubelet denies the pod now, and that no manifest is waiting to be read which could be the pod's.
func (i *Inspector) StillGone(ctx context.Context, pod Pod) error {
	if pod.UID == "" {
		return errors.New("nothing tells which pod it belongs to")
	}
	ctx, cancel := context.WithTimeout(ctx, stillGoneLimit)
	defer cancel()
	scan := NewScan(ctx, i.host)
	kubelet := askKubelet(ctx, scan)
	if kubelet.Err != nil {
		return fmt.Errorf("ask kubelet for pod %s again: %w", pod.UID, kubelet.Err)
	}
	if known, ok := kubelet.Pods[pod.UID]; ok {
		return fmt.Errorf("kubelet has pod %s again: %s/%s", pod.UID, known.Namespace, known.Name)
	}
	if up := uptimeGate("", "kubelet", kubelet.Age, kubelet.AgeErr, i.settings.KubeletUptime); !up.Open {
		return fmt.Errorf("whether kubelet has pod %s again is not known: %s", pod.UID, up.Why)
	}
	manifests := readManifests(scan, kubelet.Pods) // after kubelet: one that it has not read is missing there
	if file := manifests.UIDs[pod.UID]; file != "" {
		return fmt.Errorf("the manifest %s gives its pod the UID %s", file, pod.UID)
	}
	static, why := maybeStatic(scan, pod.UID)
	switch {
	case !static:
		return nil
	case manifests.Err != nil:
		return fmt.Errorf("pod %s may be a static one (%s): the manifests: %w", pod.UID, why, manifests.Err)
	case len(manifests.Missing) > 0:
		return fmt.Errorf("pod %s may be a static one (%s): kubelet has no pod for the manifest of %s yet", pod.UID,
			why, manifests.Missing[0])
	}
	return nil
}

// maybeStatic reports whether a UID may be one of a static pod, for all that is known now, and why.
func maybeStatic(scan *Scan, uid string) (bool, string) {
	if len(uid) == 32 {
		return true, "its UID has 32 digits"
	}
	sandboxes, err := scan.sandboxes()
	if err != nil {
		return true, "the runtime does not tell: " + err.Error()
	}
	for _, s := range sandboxes {
		if source := s.GetAnnotations()[sourceAnnotation]; s.GetMetadata().GetUid() == uid && source != "" &&
			source != "api" {
			return true, "its source is " + source
		}
	}
	return false, ""
}
