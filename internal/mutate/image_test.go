package mutate_test

import (
	"errors"
	"slices"
	"testing"

	kubecri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/cri"
	"github.com/nodeagent/nodeagent/internal/mutate"
	"github.com/nodeagent/nodeagent/internal/mutate/mutatetest"
)

// An image is removed only while it is the inspected one, no container uses it, and it is not pinned.
func TestRemoveImage(t *testing.T) {
	c := mutatetest.StartContainerd(t)
	n := mutatetest.New(t, func(p *host.Paths) { p.CRISocket = c.Socket })
	ctx := t.Context()
	list := func(name string) (found mutate.Image) {
		t.Helper()
		all, err := c.Images.ListImages(ctx, &kubecri.ListImagesRequest{})
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range all.Images {
			if slices.Contains(i.RepoTags, name) {
				found = mutate.Image{ID: i.Id, Names: cri.ImageNames(i)}
			}
		}
		return found
	}
	uid := mutatetest.UID(t)
	n.Cgroups(uid, "")
	parent := n.Host.Paths.CgroupRoot + "/kubepods/besteffort/pod" + uid
	app := c.Container(c.Sandbox(uid, parent, false), parent)
	const unused = "registry.example.com/unused:1"
	c.Import(unused, []byte("unused"))
	used, victim := list(mutatetest.Image), list(unused)

	if err := n.Mutator.RemoveImage(ctx, used); !errors.Is(err, mutate.ErrBusy) {
		t.Errorf("an image of a running container: %v", err)
	}
	if _, err := c.Client.StopContainer(ctx, &kubecri.StopContainerRequest{ContainerId: app.Id}); err != nil {
		t.Fatal(err)
	}
	if err := n.Mutator.RemoveImage(ctx, used); !errors.Is(err, mutate.ErrBusy) {
		t.Errorf("an image of a container that has ended: %v", err)
	}
	unpin := mutate.PinImages(n.Mutator)
	if _, refused := errors.AsType[mutate.Refusal](n.Mutator.RemoveImage(ctx, victim)); !refused {
		t.Error("a pinned image is not refused")
	}
	unpin()
	renamed := victim
	renamed.Names = append([]string{"registry.example.com/other:1"}, victim.Names...)
	if err := n.Mutator.RemoveImage(ctx, renamed); !errors.Is(err, mutate.ErrChanged) {
		t.Errorf("an image with other names: %v", err)
	}
	for _, name := range []string{mutatetest.Image, unused} {
		if list(name).ID == "" {
			t.Fatalf("%s is gone", name)
		}
	}
	for range 2 { // the second time it is gone
		if err := n.Mutator.RemoveImage(ctx, victim); err != nil {
			t.Fatal(err)
		}
	}
	if list(unused).ID != "" || list(mutatetest.Image).ID == "" {
		t.Errorf("unused: %v, used: %v", list(unused), list(mutatetest.Image))
	}
	none := mutatetest.New(t)
	if err := none.Mutator.RemoveImage(ctx, victim); err == nil {
		t.Error("a node without a runtime has removed an image")
	}
}
