package ratelimit

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"strings"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
)

// OnStoreError says what happens to requests while Redis fails. In JSON it can also be the mode
// alone, such as "allow".
type OnStoreError struct {
	// "local": the same limits apply, with budgets in this process. "allow": requests pass
	// unlimited. "deny": requests are answered with status 503 (default local).
	Mode string `json:"mode,omitempty"`

	// The share of the limits that this process grants in mode local: a fraction such as 1/3
	// for one of three instances. It is rounded down to at least 1 event (default 1: all).
	Share string `json:"share,omitempty"`
}

// UnmarshalJSON implements [json.Unmarshaler].
func (o *OnStoreError) UnmarshalJSON(data []byte) error {
	if len(data) > 0 && data[0] == '"' {
		return json.Unmarshal(data, &o.Mode)
	}
	if len(data) > 0 && data[0] != '{' {
		return errors.New("must be a string or an object, such as \"allow\"")
	}
	type plain OnStoreError
	return decodeStrictly(data, (*plain)(o))
}

// MarshalJSON implements [json.Marshaler].
func (o OnStoreError) MarshalJSON() ([]byte, error) {
	if o.Share == "" {
		return json.Marshal(o.Mode)
	}
	type plain OnStoreError
	return json.Marshal(plain(o))
}

// storeErrorPolicy is a checked [OnStoreError] with its defaults filled in.
type storeErrorPolicy struct {
	mode     string
	num, den int64 // the share
}

// slotShare returns how many of n slots the local budgets grant: the share, but at least 1.
func (p storeErrorPolicy) slotShare(n int64) int64 { return max(n*p.num/p.den, 1) }

// onStoreErrorForm describes the values of the option on_store_error, for errors.
const onStoreErrorForm = "local, local with a share as in local 1/3, allow or deny"

// compile returns the checked policy; for nil, the default.
func (o *OnStoreError) compile() (storeErrorPolicy, error) {
	policy := storeErrorPolicy{mode: "local", num: 1, den: 1}
	if o == nil {
		return policy, nil
	}
	switch o.Mode {
	case "local", "allow", "deny":
		policy.mode = o.Mode
	case "":
		if o.Share == "" {
			return policy, errors.New("on_store_error is empty: write " + onStoreErrorForm)
		}
	default:
		return policy, fmt.Errorf("on_store_error must be %s, not %q", onStoreErrorForm, o.Mode)
	}
	if o.Share == "" {
		return policy, nil
	}
	if policy.mode != "local" {
		return policy, fmt.Errorf("on_store_error %s takes no share, not %q: only local has limits to share", o.Mode, o.Share)
	}
	const maxDenominator = 1_000_000
	share, ok := new(big.Rat).SetString(o.Share)
	if !ok || len(o.Share) > 20 || strings.ContainsAny(o.Share, "eEpPxX_") ||
		share.Sign() <= 0 || share.Cmp(big.NewRat(1, 1)) > 0 || share.Denom().Cmp(big.NewInt(maxDenominator)) > 0 {
		return policy, fmt.Errorf("the share of on_store_error local must be above 0 and at most 1, not %q: write for example 1/3", o.Share)
	}
	policy.num, policy.den = share.Num().Int64(), share.Denom().Int64()
	return policy, nil
}

// unmarshalOnStoreError reads on_store_error local [<share>]|allow|deny.
func unmarshalOnStoreError(d *caddyfile.Dispenser) (*OnStoreError, error) {
	args := d.RemainingArgs()
	if len(args) < 1 || len(args) > 2 {
		return nil, fmt.Errorf("on_store_error takes %s, not %d values", onStoreErrorForm, len(args))
	}
	o := &OnStoreError{Mode: args[0]}
	if len(args) == 2 {
		o.Share = args[1]
	}
	_, err := o.compile()
	return o, err
}
