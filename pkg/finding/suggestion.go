package finding

// SuggestedAction is what would bring the node back where nothing on the node may or can do it. Whoever operates the
// machines does it; the agent only names it.
type SuggestedAction string

// The suggested actions.
const (
	SuggestReboot          SuggestedAction = "reboot"
	SuggestReinstall       SuggestedAction = "reinstall" // of the machine's system
	SuggestReplaceHardware SuggestedAction = "replace-hardware"
	SuggestHuman           SuggestedAction = "human" // somebody has to decide what
)

// Suggestion returns the suggested action for people, with the part; empty where there is none.
func (f Finding) Suggestion() string {
	switch {
	case f.SuggestedAction == "" || f.Part == "":
		return string(f.SuggestedAction)
	}
	return string(f.SuggestedAction) + ": " + f.Part
}
