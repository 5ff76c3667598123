package finding

import "errors"

// AccessError means that the agent lacks what it takes to learn something: a file that it may not read, or a right that
// somebody denies it. One lack may blind many checks, and is one fault.
type AccessError struct {
	Access

	Err error
}

func (e *AccessError) Error() string { return e.Err.Error() }

// Unwrap returns what was answered.
func (e *AccessError) Unwrap() error { return e.Err }

// Access is something that the agent lacks.
type Access struct {
	Lack  string `json:"lack"`  // what, in the same words each time: "the apiserver denies: list daemonsets.apps"
	Grant string `json:"grant"` // what to give it, exactly
}

// AccessOf returns what the agent lacks where that alone is why nothing was learnt, else nil.
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
