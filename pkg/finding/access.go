package finding

import "errors"

// AccessError means that the agent lacks access to something: a file that it may not read, or a right that it is
// denied. One lack may blind many checks, and is one fault.
type AccessError struct {
	Access

	Err error
}

func (e *AccessError) Error() string { return e.Err.Error() }

// Unwrap returns the original error.
func (e *AccessError) Unwrap() error { return e.Err }

// Access is a missing access of the agent.
type Access struct {
	Lack  string `json:"lack"`  // always in the same words: "the apiserver denies: list daemonsets.apps"
	Grant string `json:"grant"` // exactly the access to grant
}

// AccessOf returns the missing access if that alone explains the error, else nil.
func AccessOf(err error) *Access {
	partial, ok := errors.AsType[*PartialError](err)
	if !ok {
		if lack, ok := errors.AsType[*AccessError](err); ok {
			return &lack.Access
		}
		return nil
	}
	var common *Access
	for _, err := range partial.Subjects {
		lack := AccessOf(err)
		if lack == nil || common != nil && *common != *lack {
			return nil
		}
		common = lack
	}
	return common
}
