/* SPDX-License-Identifier: Apache-2.0 */
/* Schemas as people send them, each with documents that it allows and documents that it does not. */
#include "formats/grammar/test_grammar.h"

const struct test_schema test_schemas[] = {
    {"{}", "null\n1\n{'a':[1,{'b':null}]}\n'x'", "nul\n[1,]\n{'a'}"},
    {"{'type':'string'}", "''\n'a \\u00e9 \\ud83d\\ude00 é'\n'\\n\\\\'", "1\n'\\x'\n'\\ud83d'\n'\\u0000'\n'a"},
    {"{'type':'integer'}", "0\n-12\n123456789012345678", "1.5\n01\n-\n'1'\n1e3"},
    {"{'type':'number'}", "0\n-1.5\n1e5\n0.001E-7\n3", ".5\n1.\n+1\nNaN\n00"},
    {"{'type':'boolean'}", "true\nfalse", "null\n0\nTrue"},
    {"{'type':'null'}", "null", "false\n''"},
    {"{'type':['string','null']}", "'a'\nnull", "1\n{}"},
    {"{'type':['integer','number','boolean']}", "1\n1.5\ntrue", "'1'\nnull"},
    {"{'type':'object'}", "{}\n{'a':1,'b':{'c':[]}}", "[]\n{'a':}\n{,}"},
    {"{'type':'array'}", "[]\n[1,'a',[null]]", "{}\n[,]\n[1"},
    {"{'type':'object','properties':{'name':{'type':'string'},'age':{'type':'integer'}},'required':['name','age']}",
     "{'name':'x','age':3}", "{'name':'x'}\n{}\n{'name':'x','age':'3'}\n{'age':3,'name':'x'}"},
    {"{'type':'object','properties':{'name':{'type':'string'},'age':{'type':'integer'}}}",
     "{}\n{'name':'x'}\n{'age':3}\n{'name':'x','age':3}", "{,'age':3}\n{'name':'x',}\n{'other':1}"},
    {"{'type':'object','properties':{'a':{'type':'integer'},'b':{'type':'integer'},'c':{'type':'integer'}},'required':["
     "'b']}",
     "{'b':1}\n{'a':1,'b':2}\n{'b':1,'c':2}\n{'a':1,'b':2,'c':3}", "{'a':1}\n{'a':1,'c':1}\n{'b':1,}"},
    {"{'type':'object','properties':{'a':{'type':'integer'}},'required':['a'],'additionalProperties':false}", "{'a':1}",
     "{}\n{'a':1,'b':2}"},
    {"{'type':'object','properties':{'a':{'type':'integer'},'ab':{'type':'null'}},'required':['a'],'"
     "additionalProperties':true}",
     "{'a':1}\n{'a':1,'b':'x','abc':[]}\n{'a':1,'ab':null,'':2}\n{'a':1,'ä':2}",
     "{'a':1,'a':'x'}\n{'a':1,'ab':1}\n{'b':1}\n{'a':1,'\\u0061':'x'}"},
    {"{'type':'object','additionalProperties':{'type':'integer'}}", "{}\n{'x':1,'y':2}", "{'x':'1'}\n{'x':1.5}"},
    {"{'type':'object','properties':{},'additionalProperties':false}", "{}", "{'a':1}"},
    {"{'type':'array','items':{'type':'string'}}", "[]\n['a','b']", "[1]\n['a',1]"},
    {"{'type':'array','items':{'type':'integer'},'minItems':2}", "[1,2]\n[1,2,3]", "[]\n[1]"},
    {"{'type':'array','items':{'type':'integer'},'maxItems':3}", "[]\n[1,2,3]", "[1,2,3,4]"},
    {"{'type':'array','items':{'type':'boolean'},'minItems':1,'maxItems':2}", "[true]\n[true,false]",
     "[]\n[true,true,true]"},
    {"{'type':'array','prefixItems':[{'type':'string'},{'type':'integer'}],'minItems':2,'maxItems':2}", "['a',1]",
     "['a']\n[1,'a']\n['a',1,2]"},
    {"{'type':'array','prefixItems':[{'type':'string'},{'type':'integer'}],'items':{'type':'null'}}",
     "[]\n['a']\n['a',1]\n['a',1,null,null]", "[1]\n[null]\n['a',null]"},
    {"{'type':'array','prefixItems':[{'type':'string'}],'items':false}", "[]\n['a']", "['a','b']"},
    {"{'enum':['red','green','blue','gre']}", "'red'\n'gre'\n'green'", "'gree'\nred\n''"},
    {"{'type':'string','enum':['a',1,null,'b']}", "'a'\n'b'", "1\nnull"},
    {"{'enum':[1,1.5,true,null,{'a':[1]},'é\\n']}", "1\n1.5\ntrue\nnull\n{'a':[1]}\n'é\\n'", "2\n{'a':[2]}\nfalse"},
    {"{'const':'fixed'}", "'fixed'", "'other'\n'fixe'"},
    {"{'const':42}", "42", "4\n420"},
    {"{'anyOf':[{'type':'string'},{'type':'integer'}]}", "'a'\n7", "null\n1.5"},
    {"{'anyOf':[{'type':'object','properties':{'a':{'type':'integer'}},'required':['a']},"
     "{'type':'object','properties':{'a':{'type':'string'},'b':{'type':'null'}},'required':['a','b']}]}",
     "{'a':1}\n{'a':'x','b':null}", "{'a':'x'}\n{'a':1,'b':null}"},
    {"{'oneOf':[{'type':'object','properties':{'kind':{'const':'cat'},'lives':{'type':'integer'}},'required':['kind','"
     "lives']},"
     "{'type':'object','properties':{'kind':{'const':'dog'},'tricks':{'type':'array','items':{'type':'string'}}},'"
     "required':['kind']}],"
     "'discriminator':{'propertyName':'kind'}}",
     "{'kind':'cat','lives':9}\n{'kind':'dog'}\n{'kind':'dog','tricks':['sit']}", "{'kind':'cat'}\n{'kind':'cow'}"},
    {"{'oneOf':[{'type':'string'},{'type':'null'}]}", "'a'\nnull", "1"},
    {"{'allOf':[{'type':'object','properties':{'a':{'type':'integer'}},'required':['a']},"
     "{'type':'object','properties':{'b':{'type':'string'}},'required':['b']}]}",
     "{'a':1,'b':'x'}", "{'a':1}\n{'b':'x'}"},
    {"{'allOf':[{'properties':{'a':{'minimum':3}}},{'properties':{'a':{'type':'integer','maximum':5}},'required':['a']}"
     "],'type':'object'}",
     "{'a':3}\n{'a':5}", "{'a':2}\n{'a':6}\n{}"},
    {"{'$ref':'#/$defs/"
     "point','$defs':{'point':{'type':'object','properties':{'x':{'type':'number'},'y':{'type':'number'}},'required':['"
     "x','y']}}}",
     "{'x':1,'y':-2.5}", "{'x':1}\n{'y':1,'x':1}"},
    {"{'type':'object','properties':{'value':{'type':'integer'},'next':{'anyOf':[{'$ref':'#'},{'type':'null'}]}},'"
     "required':['value','next']}",
     "{'value':1,'next':null}\n{'value':1,'next':{'value':2,'next':{'value':3,'next':null}}}",
     "{'value':1}\n{'value':1,'next':{}}"},
    {"{'$defs':{'tree':{'type':'object','properties':{'name':{'type':'string'},'children':{'type':'array','items':{'$"
     "ref':'#/$defs/tree'}}},"
     "'required':['name','children'],'additionalProperties':false}},'$ref':'#/$defs/tree'}",
     "{'name':'a','children':[]}\n{'name':'a','children':[{'name':'b','children':[{'name':'c','children':[]}]},{'name':"
     "'d','children':[]}]}",
     "{'name':'a'}\n{'name':'a','children':[{}]}"},
    {"{'$defs':{'expression':{'anyOf':[{'type':'number'},{'type':'array','prefixItems':[{'enum':['+','-']},{'$ref':'#/"
     "$defs/expression'},"
     "{'$ref':'#/$defs/expression'}],'minItems':3,'maxItems':3}]}},'$ref':'#/$defs/expression'}",
     "1\n['+',1,['-',2,3]]", "['+',1]\n['*',1,2]\n['+',1,2,3]"},
    {"{'type':'string','minLength':3}", "'abc'\n'日本語x'", "'ab'\n''"},
    {"{'type':'string','maxLength':4}", "''\n'abcd'\n'日本語é'\n'\\n\\n\\n\\n'", "'abcde'"},
    {"{'type':'string','minLength':2,'maxLength':200}", "'ab'\n'abcabcabcabcabcabcabc'", "'a'\n''"},
    {"{'type':'string','minLength':100,'maxLength':100}",
     "'0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789'", "'a'"},
    {"{'type':'string','pattern':'^[a-z]{2,4}[0-9]?$'}", "'ab'\n'abcd7'", "'a'\n'abcde'\n'AB'"},
    {"{'type':'string','pattern':'b+'}", "'b'\n'xxbbyy'\n'\\n\\'b'", "''\n'xyz'"},
    {"{'type':'string','pattern':'^(\\\\d{3}-)?\\\\d{4}$'}", "'123-4567'\n'4567'", "'123-456'\n'12-4567'"},
    {"{'type':'string','pattern':'^x|y$'}", "'xaa'\n'aay'", "'axa'\n'ya'"},
    {"{'type':'string','pattern':'^[^a-z\\\\s]+$'}", "'ABC'\n'\\'\\\\'\n'é日'", "'a'\n'A B'\n''"},
    {"{'type':'string','format':'date'}", "'2024-02-29'\n'1999-12-31'\n'0400-02-29'\n'0096-02-29'\n'0001-01-01'",
     "'2023-02-29'\n'0000-01-01'\n'0000-02-29'\n'2024-13-01'\n'1900-02-29'\n'2024-04-31'"},
    {"{'type':'string','format':'time'}", "'23:59:59Z'\n'00:00:00.5+01:30'", "'24:00:00Z'\n'12:00Z'\n'12:00:00'"},
    {"{'type':'string','format':'date-time'}", "'2000-02-29T00:00:00Z'",
     "'2000-02-30T00:00:00Z'\n'2000-01-01 00:00:00Z'"},
    {"{'type':'string','format':'uuid'}", "'123e4567-e89b-12d3-a456-426614174000'", "'123e4567-e89b-12d3-a456'\n'x'"},
    {"{'type':'string','format':'email'}", "'a.b@example.com'", "'a@b'\n'@example.com'\n'a..b@example.com'"},
    {"{'type':'string','format':'ipv4'}", "'127.0.0.1'\n'255.255.255.255'", "'256.0.0.1'\n'1.2.3'\n'01.2.3.4'"},
    {"{'type':'string','format':'hostname'}", "'localhost'\n'a-b.example.com'", "'-a'\n'a..b'"},
    {"{'type':'integer','minimum':0}", "0\n7\n100000", "-1\n-0"},
    {"{'type':'integer','minimum':-5,'maximum':12}", "-5\n-1\n0\n9\n12", "-6\n13\n-10\n20"},
    {"{'type':'integer','minimum':95,'maximum':1234}", "95\n99\n100\n999\n1234", "94\n1235\n9\n2000"},
    {"{'type':'integer','exclusiveMinimum':0,'exclusiveMaximum':10}", "1\n9", "0\n10"},
    {"{'type':'integer','maximum':-10}", "-10\n-99\n-1000", "-9\n0\n5"},
    {"{'type':'integer','multipleOf':7,'minimum':1,'maximum':100}", "7\n14\n98", "0\n1\n100\n105"},
    {"{'type':'integer','multipleOf':100}", "0\n100\n-2500", "50\n101"},
    {"{'type':'number','minimum':0,'maximum':1}", "0\n1\n0.5\n1.0\n0.000001", "1.1\n-0.1\n2\n1.000001"},
    {"{'type':'number','exclusiveMinimum':0.1,'exclusiveMaximum':0.25}", "0.2\n0.100001\n0.249999",
     "0.1\n0.25\n0\n0.3\n0.250000"},
    {"{'type':'number','minimum':-273.15}", "-273.15\n-273.1\n0\n20.5", "-273.16\n-300"},
    {"{'type':'number','minimum':-2.5,'maximum':-0.5}", "-2.5\n-1\n-0.5", "-2.51\n-0.4\n0\n1"},
    {"{'type':'number','multipleOf':5}", "0\n5\n-10", "1\n5.5"},
    {"{'type':'object','properties':{'a':{'type':'object','properties':{'b':{'type':'object','properties':{'c':{'type':"
     "'array','items':"
     "{'type':'object','properties':{'d':{'enum':['x','y']}}}}}}}}}}",
     "{}\n{'a':{'b':{'c':[{'d':'x'},{}]}}}", "{'a':{'b':{'c':[{'d':'z'}]}}}"},
    {"{'type':'object','properties':{'id':{'type':'integer'}},'required':['id'],'anyOf':[{'properties':{'email':{'type'"
     ":'string','format':'email'}},"
     "'required':['email']},{'properties':{'phone':{'type':'string','pattern':'^[0-9]{5}$'}},'required':['phone']}]}",
     "{'id':1,'email':'a@b.com'}\n{'id':1,'phone':'12345'}", "{'id':1}\n{'email':'a@b.com'}"},
    {"{'$id':'https://example.com/s','anyOf':[{'type':'integer'},{'type':'null'}]}", "1\nnull", "'a'"},
    {"{'$id':'https://example.com/s','const':'a'}", "'a'", "'b'"},
    {"{'$schema':'https://json-schema.org/draft/2020-12/schema','$id':'https://example.com/"
     "a','title':'T','description':'D','type':'object',"
     "'properties':{'a':{'type':'string','default':'x','examples':['y']}},'required':['a']}",
     "{'a':''}", "{}"},
    {"{'type':'object','properties':{'a\\'b':{'type':'integer'},'é/~':{'type':'integer'}},'required':['a\\'b','é/~']}",
     "{'a\\'b':1,'é/~':2}", "{'a':1}"},
    {"{'properties':{'a':{'$ref':'#/properties/b'},'b':{'type':'array','items':{'$ref':'#/properties/c~1d'}},'c/"
     "d':{'type':'null'}}}",
     "{'a':[null],'b':[]}\n{'c/d':null}", "{'a':null}"},
    {"{'$ref':'#/$defs/a','description':'beside','$defs':{'a':{'type':'string','maxLength':2}},'minLength':1}",
     "'a'\n'ab'", "''\n'abc'"},
    {"{'type':'array','items':{'type':'array','items':{'type':'array','items':{'type':'integer'},'maxItems':5},'"
     "maxItems':5},'maxItems':5}",
     "[]\n[[[1,2],[]],[]]", "[1]\n[[1]]\n[[[]],[],[],[],[],[]]"},
    {"{'type':'object','properties':{'a':{'type':'integer'},'b':{'type':'integer'}},'anyOf':[{'required':['a']},{'"
     "required':['b']}]}",
     "{'a':1}\n{'b':1}\n{'a':1,'b':2}", "{}"},
    {"{'type':['object','null'],'properties':{'a':{'type':['array','string'],'items':{'enum':[1,2]},'maxLength':1}}}",
     "null\n{}\n{'a':[1,2]}\n{'a':'x'}", "{'a':[3]}\n{'a':'xy'}\n[]"},
    {"{'anyOf':[{'const':'aa'},{'const':'ab'},{'const':1},{'type':'null'},{'const':'a'}]}", "'aa'\n'ab'\n'a'\n1\nnull",
     "'b'\n'aab'\n2"},
    {"{'allOf':[{'enum':[1,2,3]},{'enum':[2,3,4]}],'type':'integer'}", "2\n3", "1\n4"},
    {"{'allOf':[{'properties':{'a':{'type':'number'}},'additionalProperties':{'type':'integer'}},{'properties':{'b':{'"
     "minimum':2,'type':'number'}}}],"
     "'type':'object'}",
     "{'a':1.5,'b':3}\n{'b':2,'c':7}", "{'b':2.5}\n{'b':1}\n{'c':'x'}"},
    {"{'type':'object','properties':{'optional':false,'a':true}}", "{}\n{'a':[{}]}", "{'optional':1}"},
};
const size_t test_schema_count = sizeof test_schemas / sizeof *test_schemas;
