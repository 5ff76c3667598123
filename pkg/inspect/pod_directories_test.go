package inspect

import "testing"

// The directory of a gone pod says which user IDs it keeps from others, where its file can be believed.
func TestUserIDsOfPodDirectory(t *testing.T) {
	for text, want := range map[string]string{
		`{"uidMappings":[{"hostId":131072,"containerId":0,"length":65536}],"gidMappings":[]}`: "65536 of the node from 131072 on",
		`{"uidMappings":[]}`: "", `{"uidMappings":[{"hostId":-1}]}`: "", `null`: "",
	} {
		n := newNode(t)
		n.write(text, "pods", dead, "userns")
		report := n.ripen(t, History{}, n.inspector())
		for _, o := range report.Objects {
			if o.Kind == PodDirectory && o.Pod.UID == dead && (o.Facts["userIDs"] != want || o.Verdict != Leftover) {
				t.Errorf("%s: %s %q", text, o.Verdict, o.Facts["userIDs"])
			}
		}
	}
}
