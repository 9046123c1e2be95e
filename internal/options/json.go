package options

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/caddyserver/caddy/v2"
)

// DecodeStrictly decodes JSON. Unknown fields, trailing text and zeros that would become another number are
// errors. Errors name the path of the value and the correction, and no types of Go.
func DecodeStrictly(data []byte, into any) error {
	decoder := json.NewDecoder(strings.NewReader(string(data)))
	decoder.DisallowUnknownFields()
	err := decoder.Decode(into)
	if err == nil {
		if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
			return errors.New("something follows the JSON")
		}
		return checkZeros("", data, reflect.TypeOf(into).Elem())
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return errors.New("the JSON ends too early")
	}
	if errors.As(err, new(*json.SyntaxError)) {
		return fmt.Errorf("not valid JSON: %w", err)
	}
	return locateError("", data, reflect.TypeOf(into).Elem(), err)
}

var unmarshaler = reflect.TypeFor[json.Unmarshaler]()

// locateError returns an error that names the place of the value that can't be decoded into a
// t because of err. It decodes the parts of the JSON one by one to find that value.
func locateError(place string, data []byte, t reflect.Type, err error) error {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	decodes := func(data []byte, t reflect.Type) error {
		decoder := json.NewDecoder(strings.NewReader(string(data)))
		decoder.DisallowUnknownFields()
		return decoder.Decode(reflect.New(t).Interface())
	}
	kind := t.Kind()
	if reflect.PointerTo(t).Implements(unmarshaler) && data[0] != '{' {
		kind = reflect.Invalid // the type decodes itself
	}
	switch kind {
	case reflect.Struct, reflect.Map:
		var object map[string]json.RawMessage
		if json.Unmarshal(data, &object) != nil {
			break
		}
		fields := fieldTypes(t)
		for _, name := range slices.Sorted(maps.Keys(object)) {
			field, there := fieldType(t, fields, name)
			if !there {
				return unknownFieldError(place, name, fields)
			}
			if err := decodes(object[name], field); err != nil {
				other := Suggest(name, fieldNames(fields))
				if field.Kind() == reflect.Slice && object[name][0] == '{' && other != "" && other != name {
					return fmt.Errorf("%s must be a list, not an object (did you mean %s?)", strings.TrimPrefix(place+"."+name, "."), other)
				}
				return locateError(strings.TrimPrefix(place+"."+name, "."), object[name], field, err)
			}
		}
	case reflect.Slice:
		var list []json.RawMessage
		if json.Unmarshal(data, &list) != nil {
			break
		}
		for i, element := range list {
			if err := decodes(element, t.Elem()); err != nil {
				return locateError(fmt.Sprintf("%s[%d]", place, i), element, t.Elem(), err)
			}
		}
	}
	return wrongValueError(place, data, t, err)
}

// checkZeros returns an error if a field with the tag zero is written as 0. The tag has the default of the
// field, which applies if the field is left out. A duration of a few nanoseconds is an error, too.
func checkZeros(place string, data []byte, t reflect.Type) (err error) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	var object map[string]json.RawMessage
	var list []json.RawMessage
	switch kind := t.Kind(); {
	case kind == reflect.Slice && json.Unmarshal(data, &list) == nil:
		for i, element := range list {
			err = cmp.Or(err, checkZeros(fmt.Sprintf("%s[%d]", place, i), element, t.Elem()))
		}
	case kind == reflect.Map && json.Unmarshal(data, &object) == nil:
		for _, name := range slices.Sorted(maps.Keys(object)) {
			err = cmp.Or(err, checkZeros(place+"."+name, object[name], t.Elem()))
		}
	case kind == reflect.Struct && json.Unmarshal(data, &object) == nil:
		for _, f := range reflect.VisibleFields(t) {
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			written, path := object[name], strings.TrimPrefix(place+"."+name, ".")
			value := reflect.New(f.Type)
			if instead := f.Tag.Get("zero"); instead != "" && written != nil && string(written) != "null" &&
				json.Unmarshal(written, value.Interface()) == nil && value.Elem().IsZero() {
				err = cmp.Or(err, fmt.Errorf("%s must not be 0: leave it out for %s", path, instead))
			}
			if n, _ := strconv.Atoi(string(written)); f.Type == reflect.TypeFor[caddy.Duration]() && n > 0 && n < 1000 {
				err = cmp.Or(err, fmt.Errorf(`%s must be a duration, not %d: write "%[2]ds", because a number is nanoseconds`, path, n))
			}
			err = cmp.Or(err, checkZeros(path, written, f.Type))
		}
	}
	return err
}

// fieldTypes returns the types of a struct's fields by their JSON names.
func fieldTypes(t reflect.Type) map[string]reflect.Type {
	if t.Kind() != reflect.Struct {
		return nil
	}
	types := make(map[string]reflect.Type)
	for _, f := range reflect.VisibleFields(t) {
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" && name != "-" {
			types[name] = f.Type
		}
	}
	return types
}

// fieldNames returns the names of fields that errors suggest. Only the Caddyfile adapter writes position.
func fieldNames(fields map[string]reflect.Type) []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(fields)), func(name string) bool { return name == "position" })
}

// fieldType returns the type of an object's field; the case of the name doesn't matter.
func fieldType(t reflect.Type, fields map[string]reflect.Type, name string) (found reflect.Type, there bool) {
	if t.Kind() == reflect.Map {
		return t.Elem(), true
	}
	for field, found := range fields {
		if strings.EqualFold(field, name) {
			return found, true
		}
	}
	return nil, false
}

// exampleWith returns a value of this type in which the field has its place, or "". The tag algorithm of the field names
// an algorithm that has it.
func exampleWith(field string, t reflect.Type) string {
	switch t.Kind() {
	case reflect.Pointer:
		return exampleWith(field, t.Elem())
	case reflect.Map:
		if example := exampleWith(field, t.Elem()); example != "" {
			return `{"api": ` + example + `}`
		}
	case reflect.Slice:
		if example := exampleWith(field, t.Elem()); example != "" {
			return "[" + example + "]"
		}
	case reflect.Struct:
		for _, f := range reflect.VisibleFields(t) {
			if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != field || name == "" {
				continue
			}
			if algorithm := f.Tag.Get("algorithm"); algorithm != "" {
				return fmt.Sprintf(`{"algorithm": %q, %q: ...}`, algorithm, field)
			}
			return fmt.Sprintf("{%q: ...}", field)
		}
	}
	return ""
}

func unknownFieldError(place, name string, fields map[string]reflect.Type) error {
	if place != "" {
		place += ": "
	}
	names := fieldNames(fields)
	if other := Suggest(name, names); other != "" {
		return fmt.Errorf("%sunknown field %.100q (did you mean %s?)", place, name, other)
	}
	for _, other := range names {
		if example := exampleWith(name, fields[other]); example != "" {
			return fmt.Errorf(`%sunknown field %q: it belongs in %s, as in "%s": %s`, place, name, other, other, example)
		}
	}
	return fmt.Errorf("%sunknown field %.100q: write one of %s", place, name, strings.Join(names, ", "))
}

// wrongValueError returns the error for a value of the wrong kind. The error shows the value only
// where a number or a duration belongs, because other values may be secrets.
func wrongValueError(place string, data []byte, t reflect.Type, err error) error {
	if place == "" {
		place = "it"
	}
	var text string
	isText := json.Unmarshal(data, &text) == nil
	switch {
	case t == reflect.TypeFor[caddy.Duration]():
		if span, ok := meantDuration(text); ok {
			return fmt.Errorf("%s must be a duration, not %.100s: write %q", place, data, span)
		}
		return fmt.Errorf(`%s must be a duration, not %.100s: write for example "1m"`, place, data)
	case reflect.PointerTo(t).Implements(unmarshaler):
		return fmt.Errorf("%s %w", place, err)
	}
	wanted := ""
	switch t.Kind() {
	case reflect.Bool:
		if isText {
			return fmt.Errorf("%s must be true or false without quotes, not %.100s", place, data)
		}
		wanted = "true or false"
	case reflect.Int, reflect.Int64:
		if class, ok := strings.CutSuffix(text, "xx"); ok && len(class) == 1 && class[0] >= '1' && class[0] <= '5' {
			text = class // as in a Caddyfile, for a class of status codes
		}
		if meant, ok := meantInteger(text); ok {
			text = strconv.FormatInt(meant, 10)
		}
		if isText && json.Unmarshal([]byte(text), new(int64)) == nil {
			return fmt.Errorf("%s must be a whole number, not %.100s: write %s", place, data, text)
		}
		if isText || data[0] == '-' || data[0] >= '0' && data[0] <= '9' {
			return fmt.Errorf("%s must be a whole number, not %.100s", place, data)
		}
		wanted = "a whole number"
	case reflect.Float64:
		if isText && json.Unmarshal([]byte(text), new(float64)) == nil {
			return fmt.Errorf("%s must be a number, not %.100s: write %s", place, data, text)
		}
		wanted = "a number"
	case reflect.String:
		wanted = "a string"
	case reflect.Slice:
		if isText || data[0] == '{' {
			return fmt.Errorf("%s must be a list, not %s: write it in brackets", place, jsonKind(data))
		}
		wanted = "a list"
	case reflect.Struct:
		if isText && fieldTypes(t)["algorithm"] != nil {
			return fmt.Errorf(`%s must be an object, not %.100s: write for example {"algorithm": "gcra", "events": 10, "window": "1s"}`, place, data)
		}
		fields := fieldNames(fieldTypes(t))
		return fmt.Errorf("%s must be an object, not %s: write in braces %s", place, jsonKind(data), strings.Join(fields, ", "))
	case reflect.Map:
		wanted = "an object"
	default:
		return fmt.Errorf("%s: %w", place, err)
	}
	return fmt.Errorf("%s must be %s, not %s", place, wanted, jsonKind(data))
}

// jsonKind returns the kind of a JSON value in words.
func jsonKind(data []byte) string {
	switch data[0] {
	case '"':
		return "a string"
	case '[':
		return "a list"
	case '{':
		return "an object"
	case 't', 'f', 'n':
		return string(data)
	}
	return "a number"
}

// ReadableJSON returns JSON without escapes for < > and &.
func ReadableJSON(v any) ([]byte, error) {
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	err := encoder.Encode(v)
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), err
}

// Object is a JSON object whose fields keep their order.
type Object []Field

// Field is a field of an [Object].
type Field struct {
	Name  string
	Value any
}

// MarshalJSON implements [json.Marshaler].
func (o Object) MarshalJSON() ([]byte, error) {
	var fields [][]byte
	for _, f := range o {
		name, _ := ReadableJSON(f.Name) // a text has no error
		value, err := ReadableJSON(f.Value)
		if err != nil {
			return nil, err
		}
		fields = append(fields, slices.Concat(name, []byte(":"), value))
	}
	return slices.Concat([]byte("{"), bytes.Join(fields, []byte(",")), []byte("}")), nil
}
