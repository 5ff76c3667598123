package cri

import (
	"fmt"
	"slices"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// ImageNames returns all names of an image, sorted: its ID, its tags and its digests.
func ImageNames(image *cri.Image) []string {
	names := slices.Concat([]string{image.GetId()}, image.GetRepoTags(), image.GetRepoDigests())
	names = slices.DeleteFunc(names, func(name string) bool { return name == "" })
	slices.Sort(names)
	return slices.Compact(names)
}

// ImagesOf returns the containers' names of their images: tags, digests or IDs, depending on the runtime.
func ImagesOf(containers []*cri.Container) []string {
	var names []string
	for _, c := range containers {
		names = append(names, c.GetImage().GetImage(), c.GetImage().GetUserSpecifiedImage(), c.GetImageRef(),
			c.GetImageId())
	}
	return names
}

// UsedImages returns the IDs of the images that names refer to. The runtime resolves a name that no listed image has,
// as "busybox" for docker.io/library/busybox:latest; empty names are left out.
func UsedImages(images []*cri.Image, names []string, resolve func(name string) (id string, err error)) (map[string]bool,
	error) {
	byName := make(map[string]string)
	for _, image := range images {
		for _, name := range ImageNames(image) {
			byName[name] = image.GetId()
		}
	}
	used := make(map[string]bool)
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		if name == "" {
			continue
		}
		id, known := byName[name]
		if !known {
			var err error
			if id, err = resolve(name); err != nil {
				return nil, fmt.Errorf("image %s: %w", name, err)
			}
		}
		if id != "" {
			used[id] = true
		}
	}
	return used, nil
}
