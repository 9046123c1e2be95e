package simredis

import (
	"fmt"
	"reflect"

	"github.com/yuin/gopher-lua/ast"
)

// The interpreter assigns to several names one after the other, so a, b = b, a makes both equal. Lua computes all values
// first.

// separate makes each assignment to several names one of temporary names, and then one per name.
func separate(block []ast.Stmt) []ast.Stmt {
	for i, s := range block {
		if assign, ok := s.(*ast.AssignStmt); ok && len(assign.Lhs) > 1 {
			temporary := &ast.LocalAssignStmt{Exprs: assign.Rhs}
			temporary.SetLine(assign.Line())
			do := &ast.DoBlockStmt{Stmts: []ast.Stmt{temporary}}
			do.SetLine(assign.Line())
			do.SetLastLine(assign.Line())
			for n, left := range assign.Lhs {
				name := fmt.Sprint("temporary value ", n) // which no script can have
				temporary.Names = append(temporary.Names, name)
				value := &ast.IdentExpr{Value: name}
				value.SetLine(assign.Line())
				one := &ast.AssignStmt{Lhs: []ast.Expr{left}, Rhs: []ast.Expr{value}}
				one.SetLine(assign.Line())
				do.Stmts = append(do.Stmts, one)
			}
			block[i] = do
		}
		separateIn(reflect.ValueOf(block[i]))
	}
	return block
}

// separateIn does the same with the blocks within a part of a program.
func separateIn(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			separateIn(v.Elem())
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Field(i).CanInterface() {
				separateIn(v.Field(i))
			}
		}
	case reflect.Slice:
		if block, ok := v.Interface().([]ast.Stmt); ok {
			separate(block)
			return
		}
		for i := range v.Len() {
			separateIn(v.Index(i))
		}
	}
}
