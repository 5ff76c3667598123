package finding

// SuggestedAction is an action that would bring the node back, if no program on the node may or can do it. The operator
// of the machines takes it; the agent only names it.
type SuggestedAction string

// The suggested actions.
const (
	SuggestReboot          SuggestedAction = "reboot"
	SuggestReinstall       SuggestedAction = "reinstall" // of the machine's system
	SuggestReplaceHardware SuggestedAction = "replace-hardware"
	SuggestHuman           SuggestedAction = "human" // a person must decide on the action
)

// Suggestion returns the suggested action as text, with the part; empty if there is none.
func (f Finding) Suggestion() string {
	switch {
	case f.SuggestedAction == "" || f.Part == "":
		return string(f.SuggestedAction)
	}
	return string(f.SuggestedAction) + ": " + f.Part
}
